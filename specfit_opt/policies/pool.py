"""A selection method on a tree that is drafted whole."""

from __future__ import annotations

from typing import Any

from ..instance import Instance
from ..methods import METHODS
from ..solve import solve_instance
from ..tree import DraftTree
from .drafting import DraftShape, cost_with_draft, with_routing
from .policy import Choice, Policy, PolicyKind
from .view import DraftView


class Pool(Policy):
    """Draft all levels, then let a method of :data:`specfit_opt.METHODS` choose the subtree.

    It sees the calibrated path probabilities, the predicted routing, what is resident, and a cost
    model whose ``fixed_time`` holds the time of the drafting.

    Parameters
    ----------
    method : str
        Registered name.
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.
    **options
        Passed to the method.

    Raises
    ------
    InvalidInputError
        If there is no such method, or a number is not a positive integer.
    """

    def __init__(
        self, method: str, *, levels: int = 6, top_k: int = 10, width: int = 10, **options: Any
    ) -> None:
        self.method = METHODS.find(method).name
        self.shape = DraftShape(levels, top_k, width)
        self.options = options
        self.name = f"pool-{self.method}"

    def problem(self, view: DraftView) -> Instance:
        """Draft all levels and return what the method is to solve."""
        self.shape.draft(view)
        tree = DraftTree(view.parent, view.path_prob)
        return with_routing(view, tree, cost_with_draft(view, tree.n_nodes))

    def choose(self, view: DraftView) -> Choice:
        """Return the method's subtree."""
        solution = solve_instance(self.problem(view), method=self.method, **self.options)
        return Choice(solution.nodes, solution.expected_tokens, solution.cycle_time)


KIND = PolicyKind(
    name="pool-METHOD",
    make=Pool,
    summary="what a selection method chooses; all levels drafted",
    source="the method's own",
    default="exact",
)
