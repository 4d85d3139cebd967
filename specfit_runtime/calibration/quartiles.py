"""The spread of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specfit_opt.checks import Real
from specfit_opt.errors import InvalidInputError
from specfit_opt.schema import ListOf, check_attributes

_TIMES = ListOf(Real(unit="seconds"))


@dataclass(frozen=True)
class Quartiles:
    """Spread of repeated measurements, in seconds; one entry per thing measured.

    Attributes
    ----------
    lower, median, upper : tuple of float
        ``lower[i] <= median[i] <= upper[i]``.
    """

    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        check_attributes(self, dict.fromkeys(("lower", "median", "upper"), _TIMES))
        if not len(self.lower) == len(self.median) == len(self.upper):
            raise InvalidInputError(
                f"lower, median and upper have {len(self.lower)}, {len(self.median)} and "
                f"{len(self.upper)} entries; give the same number"
            )
        for i, (low, middle, high) in enumerate(
            zip(self.lower, self.median, self.upper, strict=True)
        ):
            if not low <= middle <= high:
                raise InvalidInputError(
                    f"quartiles {i} are {low}, {middle}, {high}; they must not fall"
                )

    def __len__(self) -> int:
        return len(self.median)

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> Quartiles:
        """Return the quartiles of each sequence in ``samples``."""
        rows = [np.percentile(np.asarray(s, dtype=np.float64), (25, 50, 75)) for s in samples]
        lower, median, upper = (tuple(float(row[i]) for row in rows) for i in range(3))
        return cls(lower, median, upper)
