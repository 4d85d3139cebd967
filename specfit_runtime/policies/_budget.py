"""How much speculation may lose against plain decoding before it has to rest."""

from __future__ import annotations

#: Passes of plain decoding that speculation may lose at first, and the most that gains add up to.
_ALLOWANCE = 1.25
#: Share of the time of plain decoding that is set aside for trying again, and the least share after
#: tries that failed.
_SHARE, _LEAST_SHARE = 1.0 / 256.0, 1.0 / 2048.0


class SpeculationBudget:
    """An account of seconds gained and lost against plain decoding.

    Speculation is allowed as long as the balance is positive. It begins with the time of a plain
    pass or so; every cycle adds what it gained and takes what it lost, up to the same ceiling, so
    that gains of long ago do not pay for losses now; and plain decoding adds a small share of its
    time, which is what pays for trying again after speculation had to rest. The share halves with
    every try that fails and is whole again after one that gains.
    """

    def __init__(self) -> None:
        self._unit: float | None = None
        self._balance = 0.0
        self._share = _SHARE
        self._resting = False

    @property
    def allows(self) -> bool:
        """Whether the next cycle may speculate. Not before the first plain pass."""
        return self._balance > 0.0

    @property
    def balance(self) -> float:
        """Seconds that speculation may still lose."""
        return self._balance

    def settle(self, plain_seconds: float, tokens: int, gained: float, speculated: bool) -> None:
        """Enter a cycle.

        Parameters
        ----------
        plain_seconds : float
            What plain decoding would have taken for the cycle's tokens.
        tokens : int
            Tokens that the cycle committed.
        gained : float
            Seconds that the cycle took less than that; negative if more.
        speculated : bool
            Whether anything was drafted.
        """
        per_token = plain_seconds / max(tokens, 1)
        if self._unit is None:
            self._unit = per_token
            self._balance = _ALLOWANCE * per_token
        self._unit += (per_token - self._unit) / 16.0
        rested = self._balance <= 0.0
        self._balance += gained
        if not speculated:
            self._balance += self._share * plain_seconds
        ceiling = _ALLOWANCE * self._unit
        self._balance = min(self._balance, ceiling)
        if rested:
            self._resting = True
        if speculated and self._resting:
            if gained > 0.0:
                self._share = _SHARE
                self._resting = self._balance < 0.5 * ceiling
            elif self._balance <= 0.0:
                self._share = max(self._share / 2.0, _LEAST_SHARE)
