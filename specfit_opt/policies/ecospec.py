"""EcoSpec: a fixed number of nodes by path probability over newly activated experts."""

from __future__ import annotations

from ..solve import solve_instance
from .drafting import DraftShape, choice_of, drafted_tree, with_routing
from .policy import Choice, Policy, PolicyKind, number
from .view import DraftView


class EcoSpec(Policy):
    """Draft three levels of two and add four nodes by probability per newly activated expert.

    Parameters
    ----------
    budget : int
        Nodes added to the root.
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level. The defaults,
        like that of ``budget``, are the published ones.

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.

    Notes
    -----
    The published system predicts routing with networks trained for it; here it sees what the
    decode's own predictor predicts.
    """

    name = "ecospec"
    priced = False

    def __init__(
        self, *, budget: int = 4, levels: int = 3, top_k: int = 2, width: int = 2
    ) -> None:
        self.budget = number(budget, "budget")
        self.shape = DraftShape(levels, top_k, width)

    def choose(self, view: DraftView) -> Choice:
        """Return the nodes."""
        self.shape.draft(view)
        instance = with_routing(view, drafted_tree(view))
        nodes = solve_instance(instance, method="ecospec", budget=self.budget).nodes
        return choice_of(view, nodes)


KIND = PolicyKind(
    name="ecospec",
    make=EcoSpec,
    summary="path probability per newly activated expert, four nodes",
    source="EcoSpec, arXiv 2607.12696",
)
