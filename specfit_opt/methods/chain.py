"""One path per root: the best one by the objective, or one of a fixed length."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..checks import Whole
from ..expert_union import ExpertUnion, expert_prices
from ..instance import Instance
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, complete_order, mask_of, nearest_allowed
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    length: int | None = None,
) -> Solution:
    """Return one path from each root downwards.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`; ``time_limit`` is not needed.
    length : int, optional
        Draft tokens per sequence: from each root, the child of highest path probability is
        followed that many times (the earlier one among equals), fewer where the tree ends. When
        omitted, the path is the best of all by the objective.

    Returns
    -------
    Solution
        With one root and no ``length``, the best path of an allowed size, the shortest among
        equals. In a forest the paths meet in one union of experts, so the best combination is
        searched for root by root, each path chosen anew given the others, until none improves:
        a local optimum. A forbidden size is cut back level by level from the paths' ends to the
        largest allowed one below it. If there is none, the paths are followed down as for
        ``length``, and where they end, further nodes join by falling path probability, up to the
        smallest allowed size.

    Raises
    ------
    InvalidInputError
        If ``length`` is negative or no integer.

    Notes
    -----
    O(n L k) time per root and round. A chain is what a drafter without a tree proposes
    (arXiv 2211.17192, 2302.01318); choosing its length by measured utility is Cascade's idea
    (arXiv 2506.20675).
    """
    allowed = allowed_sizes(instance, max_nodes)
    n_roots = instance.tree.n_roots
    walk = _walk(instance)
    if length is None:
        nodes = _best_paths(instance, rate, allowed, walk)
        stats: dict[str, object] = {}
    else:
        length = Whole(0)(length, "option length")
        size = sum(int(instance.tree.depth[v]) <= length for v in walk)
        nodes = complete_order(instance, walk)[: nearest_allowed(allowed, max(size, n_roots))]
        stats = {"length": length}
    mask = mask_of(instance, nodes)
    return build_solution(instance, mask, rate=rate, method="chain", stats=stats)


def _walk(instance: Instance) -> list[int]:
    """Follow the most probable child from every root to the end, level by level."""
    tree = instance.tree
    level = tree.roots.tolist()
    walk: list[int] = []
    while level:
        walk += level
        families = [tree.children[v] for v in level if tree.children[v]]
        level = [max(family, key=lambda c: (tree.path_prob[c], -c)) for family in families]
    return walk


def _best_paths(
    instance: Instance, rate: float | None, allowed: NDArray[np.bool_], walk: list[int]
) -> list[int]:
    """Choose every root's path given the others' until no change improves the objective."""
    tree, cost = instance.tree, instance.cost_model
    table = cost.node_table(tree.n_nodes)
    union = ExpertUnion(tree, instance.routing, expert_prices(instance))
    family, path_tokens = _families(instance)

    def objectives(
        tokens: NDArray[np.float64], size: NDArray[np.int64], transfer: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        value = np.full(len(size), -math.inf)
        fits = allowed[np.minimum(size, tree.n_nodes)]
        cycle = cost.fixed_time + table[size[fits]] + transfer[fits]
        value[fits] = tokens[fits] / cycle if rate is None else tokens[fits] - rate * cycle
        return value

    def improved(ends: dict[int, int]) -> float:
        """Change ``ends`` for the better as long as that is possible; return the objective."""
        value = -math.inf
        while True:
            before = dict(ends)
            for root, members in family.items():
                rest = [v for r, end in ends.items() if r != root for v in tree.path(end)]
                union.clear()
                union.add([*rest, root])
                values = objectives(
                    float(tree.path_prob[rest].sum()) + path_tokens[members],
                    len(rest) + 1 + tree.depth[members].astype(np.int64),
                    union.total() + union.added_by_path()[members],
                )
                best = int(np.argmax(values))
                # Equal sums taken in another order differ in the last bits; they must not make
                # the search go round in circles.
                slack = 0.0
                if value > -math.inf:
                    slack = 1e-12 * (abs(value) if rate is None else max(abs(value), 1.0))
                if values[best] > value + slack:
                    ends[root], value = int(members[best]), float(values[best])
            if ends == before or len(ends) == 1:
                return value

    ends = {root: root for root in family}
    if improved(ends) == -math.inf:
        # No single path reaches an allowed size: start from the smallest set that has one.
        size = nearest_allowed(allowed, tree.n_roots)
        if size > len(walk):
            return complete_order(instance, walk)[:size]
        for v in walk[:size]:
            ends[tree.path(v)[0]] = v
        improved(ends)
    return [v for end in ends.values() for v in tree.path(end)]


def _families(
    instance: Instance,
) -> tuple[dict[int, NDArray[np.int64]], NDArray[np.float64]]:
    """Return the nodes below each root, shallow ones first, and the path sums of probability."""
    tree = instance.tree
    top = np.arange(tree.n_nodes)
    tokens = tree.path_prob.copy()
    for v, u in enumerate(tree.parent.tolist()):
        if u >= 0:
            top[v] = top[u]
            tokens[v] += tokens[u]
    order = np.argsort(tree.depth, kind="stable")
    return {root: order[top[order] == root] for root in tree.roots.tolist()}, tokens


METHOD = Method(
    name="chain",
    select=select,
    summary="best single path per root, or one of a fixed length",
    source="chain drafting: arXiv 2211.17192, 2302.01318; see also Cascade, arXiv 2506.20675",
)
