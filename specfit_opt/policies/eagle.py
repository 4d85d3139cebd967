"""A tree of fixed size."""

from __future__ import annotations

from ..solve import solve_instance
from .drafting import DraftShape, choice_of, drafted_tree, without_routing
from .policy import Choice, Policy, PolicyKind, number
from .view import DraftView


class Eagle(Policy):
    """Draft all levels and verify the ``size`` nodes of highest path probability.

    Parameters
    ----------
    size : int
        Nodes of the pass, the root included. A smaller tree is verified whole.
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.

    Notes
    -----
    The rerank is on the drafter's own probabilities and closed under ancestors: the earlier node
    comes first among equals.
    """

    priced = False
    predicts = False

    def __init__(
        self, size: int | str = 60, *, levels: int = 6, top_k: int = 10, width: int = 10
    ) -> None:
        self.size = self.needs_nodes = number(size, "the size of an EAGLE tree")
        self.shape = DraftShape(levels, top_k, width)
        self.name = f"eagle-{self.size}"

    def choose(self, view: DraftView) -> Choice:
        """Return the tree."""
        self.shape.draft(view)
        instance = without_routing(drafted_tree(view))
        nodes = solve_instance(instance, method="eagle", budget=self.size).nodes
        return choice_of(view, nodes)


KIND = PolicyKind(
    name="eagle-N",
    make=Eagle,
    summary="the N likeliest nodes; all levels drafted",
    source="EAGLE-2 (arXiv 2406.16858), EAGLE-3 (arXiv 2503.01840)",
    default="60",
)
