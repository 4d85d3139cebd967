"""EVICT: the best prefix of the EAGLE tree by tokens over the time that its size takes."""

from __future__ import annotations

from ..solve import solve_instance
from .drafting import DraftShape, choice_of, cost_with_draft, drafted_tree, without_routing
from .policy import Choice, Policy, PolicyKind
from .view import DraftView


class Evict(Policy):
    """Draft all levels and keep the m likeliest nodes that maximise ``P(m) / C(m)``.

    ``C(m)`` is the time of a pass over m nodes with their experts in place, drafting included, as
    published: blind to which experts a node uses, and to whether they are in fast memory.

    Parameters
    ----------
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.
    """

    name = "evict"
    predicts = False

    def __init__(self, *, levels: int = 6, top_k: int = 10, width: int = 10) -> None:
        self.shape = DraftShape(levels, top_k, width)

    def choose(self, view: DraftView) -> Choice:
        """Return the prefix."""
        self.shape.draft(view)
        tree = drafted_tree(view)
        cost = cost_with_draft(view, tree.n_nodes)
        table = cost.fixed_time + cost.node_table(tree.n_nodes)
        nodes = solve_instance(without_routing(tree, cost), method="evict", pass_time=table).nodes
        return choice_of(view, nodes)


KIND = PolicyKind(
    name="evict",
    make=Evict,
    summary="best prefix by path probability, pass time known by size only",
    source="EVICT, arXiv 2605.00342",
)
