"""The published rule: the best ratio of the pass, exact, until another level lowers it."""

from __future__ import annotations

from typing import Any

from ..checks import OneOf, shown
from ..errors import InvalidInputError
from .drafting import DraftShape, for_sizes
from .level_search import LevelSearch
from .policy import Choice, Policy, PolicyKind
from .view import DraftView

#: The stop rules and what they do.
STOP_RULES = {
    "naive": "stop once the best value has fallen",
    "certified": "stop when no continuation can win",
    "expected": "stop when the next level is not expected to win",
    "gain-share": "stop when the next level gains less than its share of the pass's tokens",
    "none": "draft every level",
}

#: What is maximised.
OBJECTIVES = {
    "ratio": "tokens per second of the pass",
    "surplus": "tokens beyond what the pass's time is worth at the rate of the decode so far",
}


class Ratio(Policy):
    """Choose the best subtree after every level, and stop drafting when the best value falls.

    Every expert that a pass loads is charged to that pass in full; nothing is learned but
    acceptance, routing and times.

    Parameters
    ----------
    stop : {"naive", "certified", "expected", "gain-share", "none"}
        When to stop drafting; the others than the default are for studies. ``"certified"``: before
        a level if no continuation, however long, can beat what is in hand, at the prices of the
        tree so far. ``"expected"``: before a level that is not expected to win at the acceptance
        seen so far. ``"gain-share"``: before a level that is expected to gain fewer tokens than its
        share of the pass's time earns, see Notes. ``"none"``: never.
    objective : {"ratio", "surplus"}
        What is maximised; the surplus is tokens less seconds at the running rate.
    levels, top_k, width : int
        Most levels to draft, children of each expanded node, and nodes expanded per level.

    Raises
    ------
    InvalidInputError
        If an option is out of range.

    Notes
    -----
    A name carries the options: ``ratio`` alone, ``ratio-certified``, ``ratio-surplus``,
    ``ratio-surplus-none``.

    **Gain share.** With P tokens expected of the best subtree so far and T predicted seconds of its
    whole cycle, a level that takes t seconds is drafted if its expected gain is at least P t / T,
    so that drafting it earns no less than the pass as a whole. The gain is that of the verified
    nodes: a token for each node of the subtree that the level would extend, by its path probability
    and the acceptance seen so far at the depth. What verifying the new nodes and loading their
    experts takes is not asked. This is how drafting is reported to be stopped by EAGLE-4.
    """

    def __init__(
        self,
        *,
        stop: str = "naive",
        objective: str = "ratio",
        levels: int = 6,
        top_k: int = 10,
        width: int = 10,
    ) -> None:
        self.stop = OneOf(tuple(STOP_RULES))(stop, "stop")
        self.objective = OneOf(tuple(OBJECTIVES))(objective, "objective")
        self.shape = DraftShape(levels, top_k, width)
        rule = [self.objective] if self.objective != "ratio" else []
        rule += [self.stop] if self.stop != "naive" else []
        self.name = "-".join(["ratio", *rule])

    def choose(self, view: DraftView) -> Choice:
        """Return the best subtree of the levels that the rule had drafted."""
        cost = for_sizes(view.cost_model, self.shape.most_nodes)
        search = LevelSearch(view, cost, view.rate if self.objective == "surplus" else None)
        search.extend()
        while min(self.shape.levels, view.max_levels) > view.levels:
            if not self._goes_on(view, search):
                break
            if not view.grow(self.shape.top_k, self.shape.width):
                break
            before = search.solution.objective
            search.extend()
            if self.stop == "naive" and search.solution.objective < before:
                break
        return search.choice()

    def _goes_on(self, view: DraftView, search: LevelSearch) -> bool:
        if self.stop == "certified":
            left = min(self.shape.levels, view.max_levels) - view.levels
            return search.may_gain(left)
        if self.stop == "expected":
            # It looks one level ahead and is the stricter rule, so the bounds of deeper
            # continuations cannot change what it says.
            return search.expects_gain()
        if self.stop == "gain-share":
            return _gains_its_share(view, search)
        return True


def _gains_its_share(view: DraftView, search: LevelSearch) -> bool:
    solution, acceptance = search.solution, view.acceptance
    extended = view.frontier[solution.mask[view.frontier]]
    chance = acceptance[min(view.levels + 1, len(acceptance) - 1)]
    gain = float(view.path_prob[extended].sum()) * chance
    seconds = search.cycle_time(solution.nodes)
    return gain >= solution.expected_tokens * view.level_time / seconds


def _named(rule: str, **options: Any) -> Ratio:
    """Return the policy by what follows ``ratio-``: ``certified``, ``surplus``, ``surplus-none``.

    Raises
    ------
    InvalidInputError
        If there is no such rule.
    """
    stop = "naive" if rule == "surplus" else rule.removeprefix("surplus-")
    objective = "ratio" if stop == rule else "surplus"
    if stop not in STOP_RULES:
        raise InvalidInputError(
            f"ratio stops by {', '.join(STOP_RULES)}, and with 'surplus-' before it maximises the "
            f"surplus; got {shown(rule)}"
        )
    return Ratio(**{"stop": stop, "objective": objective, **options})


KIND = PolicyKind(
    name="ratio-RULE",
    make=_named,
    summary="the best ratio of the pass after each level, until it falls, or as a stop rule says",
    source="SpecFit (arXiv 2610.15417)",
    default="naive",
)
