"""How much speculation may lose against plain decoding, and when it is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checks import Maybe, Real, Whole, checked
from ..limits import MOST_SECONDS
from ..schema import Record

#: Speculative cycles after which what was seen has lost 63 % of its weight, and those after which a
#: try with a gain has held out.
_MEMORY, _HELD_OUT = 64.0, 32
#: In passes of plain decoding: what speculation may lose at first, and what a later try may lose.
_ALLOWANCE, _TRY = 1.5, 1.0
#: In passes: what may be lost in one text, whatever was gained in others.
_TEXT = 2.0
#: Cycles after which what was seen of a pass has lost 63 % of its weight: few, because a cache that
#: fills makes passes much shorter.
_UNIT_MEMORY = 8.0
#: Plain passes between losing the allowance and the first try, and at most.
_REST, _LONGEST_REST = 48, 4096

#: What `SpeculationBudget.to_state` gives.
BUDGET_STATE = Record(
    {
        "rest": Whole(_REST, _LONGEST_REST),
        "left": Whole(0, _LONGEST_REST),
        "allowance": Real(_TRY, _ALLOWANCE),
        "balance": Real(-MOST_SECONDS, MOST_SECONDS),
        "unit": Maybe(Real(0.0, MOST_SECONDS, above=True)),
    }
)


class SpeculationBudget:
    """An account of what speculation gained and lost against plain decoding.

    Speculation goes on while it has not lost more than its allowance. Gains and losses are
    forgotten over 64 speculative cycles, so that gains of long ago do not pay for losses now. What
    may be lost is counted in plain passes as long as the last ones.

    At first one and a half passes may be lost, because the first cycles teach acceptance, routing
    and times. Once that is lost, speculation rests for 48 plain passes and then is tried again with
    an allowance of one; each try that fails doubles the rest, and one that holds out with a gain
    ends the doubling. A text in which two passes were lost is decoded plainly for 48 passes, or to
    its end, whatever other texts gained. A rest also ends once the plain passes in it have made
    good what was lost, by what speculation left in the cache: so much was not lost, only spent
    early, and such a try does not count as failed.
    """

    def __init__(self) -> None:
        self._unit: float | None = None
        self._rest = _REST
        self._left = 0
        self._allowance = _ALLOWANCE
        self._text = 0.0
        self._text_left = 0
        self._to_recover = 0.0
        self._forget()

    def start(self) -> None:
        """Begin another text."""
        self._text = 0.0
        self._text_left = 0

    def to_state(self) -> dict[str, float]:
        """Return what a later decode of the same model, drafter and machine may begin with."""
        return {
            "rest": self._rest,
            "left": self._left,
            "allowance": self._allowance,
            "balance": self._sum,
            "unit": self._unit,
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        kept = checked(state, BUDGET_STATE, "budget")
        self._rest, self._left = kept["rest"], kept["left"]
        self._allowance, self._sum = kept["allowance"], kept["balance"]
        self._unit = kept["unit"]

    def _forget(self) -> None:
        self._cycles = 0
        self._sum = 0.0

    @property
    def allows(self) -> bool:
        """Whether the next cycle may speculate."""
        return not (self._left or self._text_left)

    @property
    def balance(self) -> float:
        """Passes of plain decoding that speculation gained in the cycles that are remembered."""
        return self._sum / self._unit if self._unit else 0.0

    @property
    def hopeless(self) -> bool:
        """Whether what is remembered says that speculation loses."""
        return self.balance < -self._allowance

    def enter(self, gained: float, plain: float, speculated: bool) -> None:
        """Enter a cycle.

        Parameters
        ----------
        gained : float
            Seconds that plain decoding of the cycle's tokens would have taken more; negative if
            less.
        plain : float
            Seconds that it would have taken for each of them.
        speculated : bool
            Whether anything was drafted.
        """
        last = plain if self._unit is None else self._unit
        self._unit = last + (plain - last) / _UNIT_MEMORY
        if not self.allows:
            self._recover(gained)
        else:
            self._count(gained, speculated)

    def _recover(self, gained: float) -> None:
        self._to_recover -= gained
        if self._to_recover <= 0.0:
            self._left = self._text_left = 0
            return
        self._text_left = max(self._text_left - 1, 0)
        if self._left:
            self._left -= 1
            if not self._left:
                self._rest = min(2 * self._rest, _LONGEST_REST)  # the try has failed

    def _count(self, gained: float, speculated: bool) -> None:
        if speculated:
            self._sum = (1.0 - 1.0 / _MEMORY) * self._sum + gained
            self._cycles += 1
        else:
            # What a plain pass gains or loses is what speculation before it did to the cache.
            self._sum += gained
        self._text += gained
        if self.hopeless:
            self._to_recover = max(-self._sum, -self._text)
            self._left = self._rest
            self._allowance = _TRY
            self._text = 0.0
            self._forget()
        elif self._text < -_TEXT * (self._unit or 0.0):
            self._to_recover = -self._text
            self._text, self._text_left = 0.0, _REST
        elif self._cycles >= _HELD_OUT and self._sum > 0.0:
            self._rest = _REST
            self._allowance = _ALLOWANCE
