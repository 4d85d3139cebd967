"""Warm up, hold, decay: a schedule that can be told to finish at any time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Schedule"]


@dataclass
class Schedule:
    """Learning-rate factor by step.

    Parameters
    ----------
    warmup
        Steps from 0 to 1.
    decay_start, decay_steps
        The factor falls linearly to 0 from `decay_start` on. `decay_start` None: not yet decided.
    """

    warmup: int
    decay_start: int | None
    decay_steps: int

    @property
    def end(self) -> int | None:
        """First step that is not trained any more."""
        return None if self.decay_start is None else self.decay_start + self.decay_steps

    def factor(self, step: int) -> float:
        """Return the factor at a step."""
        rise = min(1.0, (step + 1) / self.warmup)
        if self.decay_start is None or step < self.decay_start:
            return rise
        return rise * max(0.0, 1.0 - (step - self.decay_start) / self.decay_steps)

    def heed(self, order: Path, step: int) -> bool:
        """Begin the decay now if the file `order` exists; it holds the number of steps to take.

        Returns True when this call began it.
        """
        if (self.decay_start is not None and self.decay_start <= step) or not order.exists():
            return False
        self.decay_start, self.decay_steps = step, int(order.read_text())
        return True
