"""EVICT: the best prefix of the EAGLE tree by tokens over the time that its size takes."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from specfit_opt.solve import solve_instance

from ..errors import InvalidInputError
from ._pool import draft, drafted_tree, for_sizes, with_routing, without_routing
from .registry import Choice, DraftView, Policy, PolicyKind, positive

_TIMES = ("profile", "estimated")


class Evict(Policy):
    """Draft all levels and keep the m likeliest nodes that maximise ``P(m) / C(m)``.

    Parameters
    ----------
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.
    pass_time : {"profile", "estimated"}
        C(m). ``"profile"``, as published: the measured time of a pass over m nodes with their
        experts in place, drafting included. ``"estimated"`` adds the loading of the union that m
        of the pool's nodes have on average, by the predicted routing: kinder where experts are
        offloaded, and still blind to which experts a node uses.

    Raises
    ------
    InvalidInputError
        If an option is out of range.
    """

    def __init__(
        self, *, levels: int = 6, top_k: int = 10, width: int = 10, pass_time: str = "profile"
    ) -> None:
        self.levels = positive(levels, "levels")
        self.top_k = positive(top_k, "top_k")
        self.width = positive(width, "width")
        if pass_time not in _TIMES:
            raise InvalidInputError(
                f"pass_time {pass_time!r} is unknown; use one of {', '.join(_TIMES)}"
            )
        self.pass_time = pass_time
        self.predicts = pass_time == "estimated"
        self.name = "evict"

    def choose(self, view: DraftView) -> Choice:
        """Return the prefix."""
        draft(view, self.levels, self.top_k, self.width)
        if self.pass_time == "estimated":
            view.experts()  # predicting is not searching
        began = perf_counter()
        tree = drafted_tree(view)
        cost = view.cost_model
        cost = for_sizes(cost.with_fixed_time(cost.fixed_time + view.draft_time), tree.n_nodes)
        if self.pass_time == "profile":
            table = cost.fixed_time + cost.node_table(tree.n_nodes)
            solution = solve_instance(
                without_routing(tree, cost), method="evict", pass_time=table
            )
        else:
            solution = solve_instance(with_routing(view, tree, cost), method="evict")
        tokens = float(view.path_prob[solution.nodes].sum())
        return Choice(solution.nodes, expected_tokens=tokens, search_seconds=perf_counter() - began)


def _make(number: int | None, **options: Any) -> Policy:
    return Evict(**options)


KIND = PolicyKind(
    name="evict",
    make=_make,
    summary="best prefix by path probability, pass time known by size only",
    source="EVICT, arXiv 2605.00342",
)
