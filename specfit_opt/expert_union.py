"""The union of experts that some nodes use, and what further nodes would add to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .instance import Instance
from .routing import ExpertRouting, kernel_ids
from .tree import DraftTree


def expert_union(experts: NDArray[Any], n_experts: int) -> NDArray[np.bool_]:
    """Return which experts of each layer some token uses.

    Parameters
    ----------
    experts : ndarray of int, shape (n, L, k)
        -1 pads.
    n_experts : int

    Returns
    -------
    ndarray of bool, shape (L, E)
    """
    return kernel.union_mask(kernel_ids(experts), n_experts)


def used_experts(routing: ExpertRouting) -> NDArray[np.bool_]:
    """Return which elements each node uses, shape (n, L * E).

    An element is a (layer, expert) pair; with M scenarios a (scenario, layer, expert) triple, and
    the shape is (n, M * L * E).
    """
    n, n_experts = routing.n_nodes, routing.n_experts
    ids = routing.experts
    if routing.scenario_weights is not None:
        n_rows = routing.n_scenarios * routing.n_layers
        ids = np.moveaxis(ids, 0, 1).reshape(n, n_rows, ids.shape[-1])
    # The padding, -1, falls into a last column, which is dropped.
    used = np.zeros((n, ids.shape[1], n_experts + 1), dtype=np.bool_)
    np.put_along_axis(used, ids.astype(np.int64), True, axis=2)
    return used[:, :, :n_experts].reshape(n, -1)


def weighted(routing: ExpertRouting, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a value of every (layer, expert) pair, shape (L, E), as one of every element."""
    if routing.scenario_weights is None:
        return value.reshape(-1)
    return np.multiply.outer(routing.scenario_weights, value).reshape(-1)


def topmost_use(tree: DraftTree, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return ``used`` without the elements that an ancestor of the node uses already.

    In a closed set those cost the node nothing, and along a path the rest is purely additive.
    """
    above = np.zeros_like(used)
    for depth in range(1, int(tree.depth.max()) + 1):
        level = (tree.depth == depth).nonzero()[0]
        parent = tree.parent[level]
        above[level] = above[parent] | used[parent]
    return used & ~above


def expert_prices(instance: Instance) -> NDArray[np.float64]:
    """Return what each element costs, weighted, once per pass, in seconds, shape (L * E,)."""
    routing, cost = instance.routing, instance.cost_model
    time = cost.expert_table(routing.n_layers, routing.n_experts)
    return weighted(routing, np.where(routing.resident, cost.resident_time, time))


class ExpertUnion:
    """The weight of a closed set's union of experts, and of what paths would add.

    Parameters
    ----------
    tree : DraftTree
    routing : ExpertRouting
    weight : ndarray of float64, shape (L * E,)
        Weight of each element, >= 0; see :func:`used_experts`.

    Notes
    -----
    Each query takes O(n L k) time, less once most experts are covered.
    """

    def __init__(
        self, tree: DraftTree, routing: ExpertRouting, weight: NDArray[np.float64]
    ) -> None:
        topmost = topmost_use(tree, used_experts(routing))
        topmost &= weight > 0.0
        self._parent = tree.parent.tolist()
        self._node, self._pair = topmost.nonzero()
        self._of_node = np.searchsorted(self._node, np.arange(tree.n_nodes + 1))
        self._weight = weight
        self.clear()

    def clear(self) -> None:
        """Start again from the empty set."""
        self._missing = self._weight.copy()
        self._covered = np.zeros(len(self._weight), dtype=np.bool_)
        # The uses that may still cost something; see added().
        self._live = (self._node, self._pair)

    def add(self, nodes: Iterable[int]) -> None:
        """Add ``nodes``, which must leave the set ancestor-closed."""
        for v in nodes:
            pairs = self._pair[self._of_node[v] : self._of_node[v + 1]]
            self._covered[pairs] = True
            self._missing[pairs] = 0.0

    def total(self) -> float:
        """Return the weight of the union."""
        return float(self._weight[self._covered].sum())

    def added(self) -> NDArray[np.float64]:
        """Return what each node would add, its ancestors being in, shape (n,)."""
        node, pair = self._live
        missing = self._missing[pair]
        live = missing > 0.0
        if 2 * np.count_nonzero(live) < len(live):
            # Few experts are left to cover: later queries look at those alone.
            node, pair, missing = node[live], pair[live], missing[live]
            self._live = (node, pair)
        sums = np.bincount(node, weights=missing, minlength=len(self._parent))
        # Without any pair at all, bincount returns integers.
        return sums.astype(np.float64, copy=False)

    def added_by_path(self) -> NDArray[np.float64]:
        """Return what each node would add together with its missing ancestors, shape (n,)."""
        path = self.added().tolist()
        for v, u in enumerate(self._parent):
            if u >= 0:
                path[v] += path[u]
        return np.array(path)
