"""Drafting a pool of fixed shape, and handing it to the methods of `specfit_opt`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, DraftTree, ExpertRouting
from specfit_opt.instance import Instance

from .registry import DraftView

#: For rules that ask no times; a pass must take some.
_NO_TIMES = CostModel(1.0, 0.0, 0.0)


def draft(view: DraftView, levels: int, top_k: int, width: int) -> None:
    """Draft up to ``levels`` levels; fewer where the drafter ends earlier."""
    while view.levels < levels and view.grow(top_k, width):
        pass


def drafted_tree(view: DraftView) -> DraftTree:
    """Return the tree with the path probabilities that the drafter itself believes in.

    The published rules rank by these. A calibration per depth would change their order.
    """
    path = np.minimum(view.prob, 1.0)  # a copy; an excess is rounding
    path[0] = 1.0
    depth, parent = view.depth, view.parent
    for d in range(1, view.levels + 1):
        level = np.flatnonzero(depth == d)
        path[level] *= path[parent[level]]
    return DraftTree(parent.astype(np.int32), path)


def without_routing(tree: DraftTree, cost_model: CostModel = _NO_TIMES) -> Instance:
    """Return the problem for a rule that looks at no experts: there is one, and nobody uses it."""
    nobody = np.full((tree.n_nodes, 1, 1), -1, dtype=np.int16)
    times = CostModel(cost_model.fixed_time, cost_model.node_time, 0.0)
    return Instance(tree, ExpertRouting(nobody, 1), times)


def with_routing(
    view: DraftView, tree: DraftTree, cost_model: CostModel = _NO_TIMES
) -> Instance:
    """Return the problem with the predicted routing."""
    resident = view.resident
    routing = ExpertRouting(view.experts(), resident.shape[1], resident)
    return Instance(tree, routing, cost_model)


def for_sizes(cost_model: CostModel, n_nodes: int) -> CostModel:
    """Return the cost model with sizes beyond its table forbidden, up to ``n_nodes``.

    What was never measured is not verified either.
    """
    table = cost_model.node_time
    if isinstance(table, float) or len(table) > n_nodes:
        return cost_model
    longer: NDArray[np.float64] = np.full(n_nodes + 1, np.inf)
    longer[: len(table)] = table
    return CostModel(
        cost_model.fixed_time, longer, cost_model.expert_time, cost_model.resident_time
    )
