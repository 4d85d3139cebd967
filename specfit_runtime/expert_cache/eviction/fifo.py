"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .registry import EvictionKind, EvictionPolicy


class FirstInFirstOut(EvictionPolicy):
    """Gives up the expert that came longest ago, however often it was used since.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        super().__init__(n_layers, n_experts)
        self._admissions = 0
        self._came = np.zeros((n_layers, n_experts), dtype=np.int64)

    def _note(self, layer: int, experts: Sequence[int]) -> None:
        """Ignore it: uses do not count."""

    def admit(self, layer: int, expert: int) -> None:
        """Note that ``expert`` gets a slot."""
        self._admissions += 1
        self._came[layer, expert] = self._admissions

    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        return (np.where(new, self._admissions + 1, self._came[layer, ids]),)


POLICY = EvictionKind(
    name="fifo",
    make=FirstInFirstOut,
    summary="first in, first out: a baseline that ignores use",
    source="Belady, Nelson and Shedler 1969, doi:10.1145/363011.363155",
)
