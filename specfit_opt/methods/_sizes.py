"""The sizes that a node time table and ``max_nodes`` allow, and how a baseline keeps to them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..instance import Instance


def allowed_sizes(instance: Instance, max_nodes: int | None) -> NDArray[np.bool_]:
    """Return which subtree sizes may be chosen.

    Returns
    -------
    ndarray of bool, shape (n + 1,)
        Entry k is set when ``node_time`` allows k nodes, k is at least the number of roots and at
        most ``max_nodes``. :func:`specfit_opt.solve` has made sure that one entry is set.
    """
    tree = instance.tree
    allowed = np.isfinite(instance.cost_model.node_table(tree.n_nodes))
    allowed[: tree.n_roots] = False
    if max_nodes is not None:
        allowed[max_nodes + 1 :] = False
    return allowed


def nearest_allowed(allowed: NDArray[np.bool_], size: int) -> int:
    """Return the largest allowed size up to ``size``, or, if there is none, the smallest."""
    sizes = allowed.nonzero()[0]
    fitting = sizes[sizes <= size]
    return int(fitting[-1] if len(fitting) else sizes[0])


def complete_order(instance: Instance, chosen: list[int]) -> list[int]:
    """Append to ``chosen`` every other node by falling path probability.

    If every prefix of ``chosen`` from the roots on is ancestor-closed, so is every longer prefix
    of the result.
    """
    taken = set(chosen)
    return chosen + [v for v in instance.tree.prefix_order().tolist() if v not in taken]


def mask_of(instance: Instance, nodes: ArrayLike) -> NDArray[np.bool_]:
    """Return ``nodes`` as a mask over the tree."""
    mask = np.zeros(instance.tree.n_nodes, dtype=np.bool_)
    mask[np.asarray(nodes, dtype=np.int64)] = True
    return mask
