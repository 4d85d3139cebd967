"""One node at a time, the one that helps the objective most."""

from __future__ import annotations

import math
import time

from ..expert_union import ExpertUnion, expert_prices
from ..instance import Instance
from ..kernel import interrupt
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, mask_of
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
) -> Solution:
    """Add the node that gives the best objective until none improves it.

    It starts from the roots. A node can be added once its parent is in; among equals the earliest
    is taken. The first step that does not improve ends the search, so that neither a group of
    nodes that pays only together nor a cheap size behind a dear or forbidden one is found: that
    is what sets this rule apart from the optimum.

    Parameters
    ----------
    instance, rate, max_nodes
        As for :func:`specfit_opt.solve`.
    time_limit : float or None
        Seconds after which the set so far is returned; ``stats["stopped"]`` is then
        ``"time_limit"``.

    Returns
    -------
    Solution
        Where the roots alone are a forbidden size, it first grows to the smallest allowed one; on
        the way, sets count as if they had the node time of that size.

    Notes
    -----
    O(n L k) time per node added, less as the union fills up.
    """
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit
    tree, cost = instance.tree, instance.cost_model
    prob = tree.path_prob.tolist()
    table: list[float] = cost.node_table(tree.n_nodes).tolist()
    allowed = allowed_sizes(instance, max_nodes).tolist()
    start: int = allowed.index(True)

    def objective(tokens: float, size: int, transfer: float) -> float:
        cycle = cost.fixed_time + table[max(size, start)] + transfer
        return tokens / cycle if rate is None else tokens - rate * cycle

    chosen = tree.roots.tolist()
    union = ExpertUnion(tree, instance.routing, expert_prices(instance))
    union.add(chosen)
    candidates = [c for v in chosen for c in tree.children[v]]
    tokens = float(len(chosen))
    value = objective(tokens, len(chosen), union.total())
    stopped = "whole tree"
    while candidates:
        interrupt.look_up()
        size = len(chosen) + 1
        if size > start and not allowed[size]:
            stopped = "size not allowed"
            break
        if size > start and time.perf_counter() > deadline:
            stopped = "time_limit"
            break
        transfer, added = union.total(), union.added().tolist()
        best, node = max(
            (objective(tokens + prob[v], size, transfer + added[v]), -v) for v in candidates
        )
        if size > start and best <= value:
            stopped = "no improvement"
            break
        node = -node
        chosen.append(node)
        union.add([node])
        tokens += prob[node]
        value = best
        candidates.remove(node)
        candidates.extend(tree.children[node])
    return build_solution(
        instance,
        mask_of(instance, chosen),
        rate=rate,
        method="greedy",
        stats={"steps": len(chosen) - tree.n_roots, "stopped": stopped},
    )


METHOD = Method(
    name="greedy",
    select=select,
    summary="one node at a time while the objective improves",
    source="the usual greedy rule; no single source",
)
