"""How much speculation may lose against plain decoding, and when it is tried again."""

from __future__ import annotations

import math

#: Plain passes that show how long one takes, before anything else.
_FIRST = 3
#: Cycles after which what was seen of a pass has lost 63 % of its weight: few, because a cache that
#: fills makes passes much shorter.
_UNIT_MEMORY = 8.0
#: Speculative cycles after which what was seen has lost 63 % of its weight, and those after which a
#: try with a gain has held out.
_MEMORY, _HELD_OUT = 64.0, 32
#: In passes of plain decoding: what speculation may lose at first, and what a later try may lose.
_ALLOWANCE, _TRY = 1.5, 1.0
#: In passes: what may be lost in one text, whatever was gained in others.
_TEXT = 2.0
#: One cycle counts as at most so many passes lost; gains as at most so many per token.
_CLIP = 2.0
#: Plain passes between losing the allowance and the first try, and at most.
_REST, _LONGEST_REST = 48, 4096


class SpeculationBudget:
    """An account of what speculation gained and lost against plain decoding.

    Speculation goes on while it has not lost more than its allowance. Gains and losses are in units
    of a plain pass and forgotten over 64 speculative cycles, so that gains of long ago do not pay
    for losses now. A machine's times scatter by tens of percent; a rule that looks at less than the
    mean gives up what pays.

    The first three passes are plain, and the shortest of them is the unit: a cold cache makes a
    pass long. At first one and a half passes may be lost, because the first cycles teach
    acceptance, routing and times. Once that is lost, speculation rests for 48 plain passes and then
    is tried again with an allowance of one; each try that fails doubles the rest, and one that
    holds out with a gain ends the doubling. A text in which two passes were lost is decoded plainly
    for 48 passes, or to its end, whatever other texts gained. A rest also ends once the plain
    passes in it have made good what was lost, by what speculation left in the cache: so much was
    not lost, only spent early, and such a try does not count as failed.
    """

    def __init__(self) -> None:
        self._unit = math.inf
        self._first = _FIRST
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

    def _forget(self) -> None:
        self._cycles = 0
        self._sum = 0.0

    @property
    def allows(self) -> bool:
        """Whether the next cycle may speculate."""
        return not (self._first or self._left or self._text_left)

    @property
    def balance(self) -> float:
        """Passes of plain decoding that speculation gained in the cycles that are remembered."""
        return self._sum

    @property
    def hopeless(self) -> bool:
        """Whether what is remembered says that speculation loses."""
        return self._sum < -self._allowance

    def enter(self, plain_seconds: float, tokens: int, gained: float, speculated: bool) -> None:
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
            return
        self._unit += (per_token - self._unit) / _UNIT_MEMORY
        passes = gained / self._unit if self._unit else 0.0
        passes = max(-_CLIP, min(_CLIP * tokens, passes))
        if self._left or self._text_left:
            self._recover(passes)
        else:
            self._count(passes, speculated)

    def _recover(self, passes: float) -> None:
        self._to_recover -= passes
        if self._to_recover <= 0.0:
            self._left = self._text_left = 0
            return
        self._text_left = max(self._text_left - 1, 0)
        if self._left:
            self._left -= 1
            if not self._left:
                self._rest = min(2 * self._rest, _LONGEST_REST)  # the try has failed

    def _count(self, passes: float, speculated: bool) -> None:
        if speculated:
            self._sum = (1.0 - 1.0 / _MEMORY) * self._sum + passes
            self._cycles += 1
        else:
            # What a plain pass gains or loses is what speculation before it did to the cache.
            self._sum += passes
        self._text += passes
        if self.hopeless:
            self._to_recover = max(-self._sum, -self._text)
            self._left = self._rest
            self._allowance = _TRY
            self._text = 0.0
            self._forget()
        elif self._text < -_TEXT:
            self._to_recover = -self._text
            self._text, self._text_left = 0.0, _REST
        elif self._cycles >= _HELD_OUT and self._sum > 0.0:
            self._rest = _REST
            self._allowance = _ALLOWANCE
