"""How much speculation may lose against plain decoding, and when it is tried again."""

from __future__ import annotations

import math

#: In passes of plain decoding: what speculation may lose at first, what a later try may lose, the
#: most that gains add up to, and the most of them that another text inherits.
_ALLOWANCE, _TRY, _CEILING, _INHERITED = 1.0, 0.25, 5.0, 3.0
#: Plain passes that show how long one takes, before anything else.
_FIRST = 3
#: Balance at which a try counts as won.
_WON = 1.0
#: Plain passes between losing everything and the first try, and at most.
_REST, _LONGEST_REST = 48, 4096


class SpeculationBudget:
    """An account of the seconds that speculation gained and lost against plain decoding.

    Speculation is allowed while the balance is positive. It begins with the time of the shortest of
    the first three passes, which are plain: a cold cache makes a pass long. Every cycle adds what
    it gained and takes what it lost, up to five passes, so that gains of long ago do not pay for
    losses now; a text begins with at most three. Once the balance is gone, speculation rests for 48
    plain passes and then is tried again with a quarter of a pass; each try that loses it doubles
    the rest, and one that makes a whole pass of it ends the doubling.
    """

    def __init__(self) -> None:
        self._unit = math.inf
        self._first = _FIRST
        self._balance = 0.0
        self._rest = _REST
        self._left = 0
        self._trying = False

    @property
    def allows(self) -> bool:
        """Whether the next cycle may speculate."""
        return not self._first and not self._left

    @property
    def balance(self) -> float:
        """Seconds that speculation may still lose."""
        return self._balance

    def start(self) -> None:
        """Begin another text."""
        if not self._first:
            self._balance = min(self._balance, _INHERITED * self._unit)

    def settle(self, plain_seconds: float, tokens: int, gained: float, speculated: bool) -> None:
        """Enter a cycle.

        Parameters
        ----------
        plain_seconds : float
            What plain decoding would have taken for the cycle's tokens.
        tokens : int
            Tokens that the cycle committed, at least one.
        gained : float
            Seconds that the cycle took less than that; negative if more.
        speculated : bool
            Whether anything was drafted.
        """
        per_token = plain_seconds / tokens
        if self._first:
            self._first -= 1
            self._unit = min(self._unit, per_token)
            self._balance = _ALLOWANCE * self._unit
            return
        self._unit += (per_token - self._unit) / 32.0
        self._balance = min(self._balance + gained, _CEILING * self._unit)
        if self._left:
            # What the last try did to the cache still shows; the try was charged enough.
            self._left -= 1
            if not self._left:
                self._trying = True
                self._balance = _TRY * self._unit
        elif self._balance <= 0.0 and speculated:
            if self._trying:
                self._rest = min(2 * self._rest, _LONGEST_REST)
            self._left = self._rest
        elif self._trying and self._balance >= _WON * self._unit:
            self._trying = False
            self._rest = _REST
