"""Least recently used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .registry import EvictionKind, EvictionPolicy


class LeastRecentlyUsed(EvictionPolicy):
    """Gives up the expert whose last use is longest ago; the smallest id among equals.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        super().__init__(n_layers, n_experts)
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)

    def _note(self, layer: int, experts: Sequence[int]) -> None:
        self._now += 1
        self._last[layer, experts] = self._now

    def admit(self, layer: int, expert: int) -> None:
        """Count an admission as a use: what is prefetched is expected to be used next."""
        self._last[layer, expert] = self._now

    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        return (self._last[layer, ids],)


POLICY = EvictionKind(
    name="lru",
    make=LeastRecentlyUsed,
    summary="least recently used, per layer",
    source="the reference semantics of the trace format",
)
