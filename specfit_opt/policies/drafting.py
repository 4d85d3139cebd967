"""Drafting a tree of fixed shape, and handing it to the selection methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cost import CostModel
from ..instance import Instance
from ..routing import ExpertRouting
from ..tree import DraftTree
from .policy import Choice, number
from .view import DraftView

#: For rules that ask no times; a pass must take some.
_NO_TIMES = CostModel(1.0, 0.0, 0.0)


@dataclass(frozen=True)
class DraftShape:
    """The shape of a draft tree, as engines set it.

    Attributes
    ----------
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.

    Raises
    ------
    InvalidInputError
        If one is not a positive integer.
    """

    levels: int
    top_k: int
    width: int

    def __post_init__(self) -> None:
        for name in ("levels", "top_k", "width"):
            object.__setattr__(self, name, number(getattr(self, name), name))

    @property
    def most_nodes(self) -> int:
        """Nodes that a tree can have, the root included."""
        return 1 + self.top_k * (1 + self.width * (self.levels - 1))

    def draft(self, view: DraftView) -> None:
        """Draft all levels; fewer where the drafter ends earlier."""
        while view.levels < self.levels and view.grow(self.top_k, self.width):
            pass


def drafted_tree(view: DraftView) -> DraftTree:
    """Return the tree with the drafter's own path probabilities, by which published rules rank."""
    return DraftTree(view.parent.astype(np.int32), view.drafter_path_prob)


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


def choice_of(view: DraftView, nodes: NDArray[np.int64]) -> Choice:
    """Return the choice of ``nodes`` with what it should commit, by calibrated probabilities."""
    return Choice(nodes, expected_tokens=float(view.path_prob[nodes].sum()))


def cost_with_draft(view: DraftView, n_nodes: int) -> CostModel:
    """Return the view's cost model with the drafting so far, for up to ``n_nodes`` nodes."""
    cost = view.cost_model
    return for_sizes(cost.with_fixed_time(cost.fixed_time + view.draft_time), n_nodes)


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
