"""Where to draw the nodes of a tree: a tidy layered layout."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .tree import DraftTree


def tidy_layout(tree: DraftTree) -> NDArray[np.float64]:
    """Place every node by its depth and so that no two of a depth are closer than 1.

    Parameters
    ----------
    tree : DraftTree
        n nodes.

    Returns
    -------
    ndarray of float64, shape (n, 2)
        Column 0: position across the layer, from 0. Column 1: depth. Children keep their order, a
        parent stands over the middle of its outer children, and equal subtrees look the same.

    Notes
    -----
    O(n) time: two neighbouring subtrees are pushed apart by comparing their outlines down to the
    depth of the shallower one (Reingold and Tilford, "Tidier drawings of trees", IEEE Transactions
    on Software Engineering 7(2), 1981). Outlines are kept deepest level first, so that a level is
    added above, and the shallower of two outlines is merged into the deeper, at their ends.
    """
    n = tree.n_nodes
    offset = np.zeros(n)  # of a node from its parent; of a root from the first root
    outlines: list[_Outline | None] = [None] * n
    children = tree.children
    for v in range(n - 1, -1, -1):
        below = [_take(outlines, u) for u in children[v]]
        shifts, outline = _beside(below)
        middle = shifts[-1] / 2.0 if shifts else 0.0
        for u, shift in zip(children[v], shifts, strict=True):
            offset[u] = shift - middle
        outline.shift -= middle
        outline.append(0.0, 0.0)
        outlines[v] = outline
    roots = tree.roots.tolist()
    shifts, _ = _beside([_take(outlines, v) for v in roots])
    offset[roots] = shifts
    across = offset
    for v, u in enumerate(tree.parent.tolist()):
        if u >= 0:
            across[v] += across[u]
    return np.column_stack([across - across.min(), tree.depth.astype(np.float64)])


class _Outline:
    """Leftmost and rightmost position per level of a subtree, deepest level first."""

    def __init__(self) -> None:
        self.left: list[float] = []
        self.right: list[float] = []
        self.shift = 0.0  # to be added to every entry

    def append(self, left: float, right: float) -> None:
        self.left.append(left - self.shift)
        self.right.append(right - self.shift)


def _take(outlines: list[_Outline | None], node: int) -> _Outline:
    outline = outlines[node]
    assert outline is not None
    outlines[node] = None  # its lists are reused by the merged outline
    return outline


def _beside(outlines: list[_Outline]) -> tuple[list[float], _Outline]:
    """Push subtrees apart, from left to right; return their shifts and the outline of all."""
    if not outlines:
        return [], _Outline()
    whole = outlines[0]
    shifts = [0.0]
    for nxt in outlines[1:]:
        levels = range(1, min(len(whole.left), len(nxt.left)) + 1)
        apart = max(whole.right[-i] + whole.shift - nxt.left[-i] - nxt.shift for i in levels)
        shifts.append(apart + 1.0)
        nxt.shift += shifts[-1]
        if len(nxt.left) > len(whole.left):
            for i in levels:
                nxt.left[-i] = whole.left[-i] + whole.shift - nxt.shift
            whole = nxt
        else:
            for i in levels:
                whole.right[-i] = nxt.right[-i] + nxt.shift - whole.shift
    return shifts, whole
