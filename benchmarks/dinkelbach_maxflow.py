"""Dinkelbach's method over a general maximum-flow library: what the exact kernel is compared with.

Affine node time only. Each step is one minimum cut of the whole closure network (section 2 of the
theory page) in OR-Tools' SimpleMaxFlow, whose capacities are integers, so they are scaled. Arrays
are built with NumPy once; a step only changes capacities.
"""

from __future__ import annotations

import numpy as np
from ortools.graph.python import max_flow

from specfit_opt import Instance, Solution, evaluate

_SCALE = 2.0**40


def solve(instance: Instance) -> Solution:
    """Return the best ratio's set, from the better of the roots alone and the whole tree."""
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    n, layers, n_experts = tree.n_nodes, routing.n_layers, routing.n_experts
    slope = float(cost.node_table(1)[1])
    weight = np.where(
        routing.resident, cost.resident_time, cost.expert_table(layers, n_experts)
    ).ravel()
    node, layer, slot = np.nonzero(routing.experts >= 0)
    element = layer * n_experts + routing.experts[node, layer, slot]
    priced = weight[element] > 0.0
    node, element = node[priced], element[priced]
    used, element = np.unique(element, return_inverse=True)
    price = weight[used]
    source, sink = n + len(used), n + len(used) + 1
    child = np.flatnonzero(tree.parent >= 0)
    tails = np.concatenate(
        [np.full(n, source), np.arange(n), n + np.arange(len(used)), child, node]
    )
    heads = np.concatenate(
        [np.arange(n), np.full(n, sink), np.full(len(used), sink), tree.parent[child], n + element]
    )
    is_root = tree.parent < 0

    chosen = [evaluate(tree, routing, cost, nodes) for nodes in (tree.roots, np.arange(n))]
    best = max(chosen, key=lambda solution: solution.throughput)
    while True:
        rate = best.throughput
        profit = np.where(is_root, float(n), tree.path_prob - rate * slope)
        scale = _SCALE / profit[profit > 0.0].sum()
        infinite = int(_SCALE) + 1
        capacities = np.concatenate(
            [
                np.rint(np.maximum(profit, 0.0) * scale),
                np.rint(np.maximum(-profit, 0.0) * scale),
                np.rint(np.minimum(rate * price * scale, infinite)),
                np.full(len(child) + len(node), infinite),
            ]
        ).astype(np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, capacities)
        if flow.solve(source, sink) != flow.OPTIMAL:
            raise RuntimeError("the maximum flow was not solved")
        side = np.array(flow.get_source_side_min_cut())
        nodes = np.sort(side[side < n])
        step = evaluate(tree, routing, cost, nodes)
        if step.throughput <= rate * (1 + 1e-9):
            return best
        best = step
