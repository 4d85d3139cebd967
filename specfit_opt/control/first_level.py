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

#: What a level that is drafted against the rule may take of the passes since the last one; half as
#: much with each, but no less than after so many.
_SHARE, _MOST_TRIES = 0.01, 10

#: What `FirstLevel.to_state` gives.
FIRST_LEVEL_STATE = Record({"tries": Whole(0, _MOST_TRIES)})


class FirstLevel:
    """Decides on the first level before anything is predicted: plain decoding shall cost little.

    The root's experts cost nothing in the rule of :meth:`specfit_opt.TreeSearch.advise`, so neither
    do those of its virtual child, and the rule is a comparison of two ratios.

    Acceptance and the time of a level are seen by drafting alone, so a no would stand forever,
    whatever it rests on. Therefore a level is drafted all the same once it takes no more than one
    hundredth of the passes since the last one; the share is halved with each such try until
    drafting is expected to pay.
    """

    def __init__(self) -> None:
        self._tries = 0
        self._refusals = 0

    def wanted(self, view: DraftView, cost: CostModel) -> bool:
        """Return whether to draft the first level of a cycle."""
        if view.max_levels < 1:
            return False
        acceptance, level_time = view.acceptance, view.level_time
        alone = cost.fixed_time + node_time_at(cost, 1)
        both = cost.fixed_time + node_time_at(cost, 2) + level_time
        if (1.0 + acceptance[min(1, len(acceptance) - 1)]) * alone > both:
            self._tries = self._refusals = 0
            return True
        self._refusals += 1
        if level_time * 2**self._tries > _SHARE * self._refusals * alone:
            return False
        self._tries, self._refusals = min(self._tries + 1, _MOST_TRIES), 0
        return True

    def to_state(self) -> dict[str, int]:
        """Return what a later decode of the same model, drafter and machine may begin with."""
        return {"tries": self._tries}

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        self._tries = checked(state, FIRST_LEVEL_STATE, "first_level")["tries"]

