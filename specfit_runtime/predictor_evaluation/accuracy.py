"""How near predicted routing is to the recorded one: recall by node, and the size of unions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace

#: Nodes that are compared at once, which bounds the memory.
_BLOCK = 1 << 14


def node_recall(
    predicted: NDArray[np.integer], true: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the share of each node's true experts that were predicted, by layer.

    Parameters
    ----------
    predicted, true : ndarray of int, shape (N, L, k)
        -1 pads; a padded entry of ``true`` does not count.

    Returns
    -------
    ndarray of float32, shape (N, L)
        NaN where a node uses no expert of a layer.

    Notes
    -----
    O(N L k^2).
    """
    recall = np.empty(true.shape[:2], dtype=np.float32)
    for at in range(0, len(true), _BLOCK):
        part = slice(at, at + _BLOCK)
        wanted = true[part] >= 0
        hit = (true[part, :, :, None] == predicted[part, :, None, :]).any(axis=3) & wanted
        with np.errstate(invalid="ignore"):
            recall[part] = hit.sum(axis=2) / wanted.sum(axis=2)
    return recall


def recall_by_depth(
    recall: NDArray[np.float32], depth: NDArray[np.integer], levels: int
) -> NDArray[np.float64]:
    """Return the mean recall by depth, 0 to ``levels``, and layer, shape (levels + 1, L).

    NaN where there is no node.
    """
    table = np.full((levels + 1, recall.shape[1]), np.nan)
    for d in range(levels + 1):
        rows = recall[depth == d]
        known = np.isfinite(rows)
        count = known.sum(axis=0)
        total = np.where(known, rows, 0.0).sum(axis=0, dtype=np.float64)
        table[d] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return table


@dataclass(frozen=True)
class UnionError:
    """The union of the experts of a tree, predicted against true, over the positions of a trace.

    Attributes
    ----------
    tree : str
        ``"eagle-8"``: the eight nodes of highest path probability, root included; ``"pool"``: all.
    error : float
        Mean of the absolute difference in size relative to the true size, over all layers at once.
    bias : float
        Mean of that difference with its sign; negative: too few experts were expected.
    """

    tree: str
    error: float
    bias: float


def union_errors(trace: Trace, predicted: NDArray[np.integer]) -> tuple[UnionError, ...]:
    """Return the errors of the eight most probable nodes, and of the whole pool.

    Pools of fewer nodes than eight are left out of the former.

    Parameters
    ----------
    trace : Trace
    predicted : ndarray of int, shape (N, L, k)
    """
    off: dict[str, list[float]] = {"eagle-8": [], "pool": []}
    for cycle in trace.cycles():
        start, stop = trace.cycle_start[cycle.index : cycle.index + 2].tolist()
        order = cycle.tree.prefix_order()
        trees = {"eagle-8": order[:8], "pool": order}
        for name, nodes in trees.items():
            if name == "pool" or len(order) >= 8:
                guess = int(expert_union(predicted[start:stop][nodes], trace.n_experts).sum())
                true = int(expert_union(cycle.experts[nodes], trace.n_experts).sum())
                off[name].append((guess - true) / true)
    return tuple(
        UnionError(name, error=float(np.abs(all_).mean()), bias=float(np.mean(all_)))
        for name, all_ in off.items()
        if all_
    )
