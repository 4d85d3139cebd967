"""Whether to draft at all: what is known before the first level of a cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checks import Whole, checked
from ..cost import CostModel
from ..schema import Record
from ..solution import node_time_at

if TYPE_CHECKING:
    from ..policies import DraftView

#: Refusals in a row after which a level is drafted all the same, and at most.
_WAIT, _LONGEST_WAIT = 32, 4096

#: What `FirstLevel.to_state` gives.
FIRST_LEVEL_STATE = Record({"wait": Whole(_WAIT, _LONGEST_WAIT)})


class FirstLevel:
    """Decides on the first level, before anything is predicted, so that plain decoding costs little.

    The root's experts cost nothing in the rule of :meth:`specfit_opt.TreeSearch.advise`, so neither
    do those of its virtual child, and the rule is a comparison of two ratios.

    Acceptance and the time of a level are seen by drafting alone, so a no would stand forever,
    whatever it rests on: after 32 of them in a row a level is drafted all the same, after twice as
    many once more, and so on, until drafting is expected to pay.
    """

    def __init__(self) -> None:
        self._wait = _WAIT
        self._refusals = 0

    def wanted(self, view: DraftView, cost: CostModel) -> bool:
        """Return whether to draft the first level of a cycle."""
        if view.max_levels < 1:
            return False
        if _pays(view, cost):
            self._wait, self._refusals = _WAIT, 0
            return True
        self._refusals += 1
        if self._refusals < self._wait:
            return False
        self._wait, self._refusals = min(2 * self._wait, _LONGEST_WAIT), 0
        return True

    def to_state(self) -> dict[str, int]:
        """Return what a later decode of the same model, drafter and machine may begin with."""
        return {"wait": self._wait}

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        self._wait = checked(state, FIRST_LEVEL_STATE, "first_level")["wait"]


def _pays(view: DraftView, cost: CostModel) -> bool:
    acceptance = view.acceptance
    alone = cost.fixed_time + node_time_at(cost, 1)
    both = cost.fixed_time + node_time_at(cost, 2) + view.level_time
    return (1.0 + acceptance[min(1, len(acceptance) - 1)]) * alone > both
