"""Least recently used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .registry import EvictionKind, EvictionPolicy


class LeastRecentlyUsed(EvictionPolicy):
    """Gives up the expert whose last use is longest ago; the smallest id among equals.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Note that one pass uses these experts."""
        self._now += 1
        self._last[layer, experts] = self._now

    def admit(self, layer: int, expert: int) -> None:
        """Count an admission as a use: what is prefetched is expected to be used next."""
        self._last[layer, expert] = self._now

    def victims(self, layer: int, candidates: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the candidates, the first to go first."""
        ids = np.array(candidates, dtype=np.int64)
        order = np.lexsort((ids, self._last[layer, ids]))[:count]
        first: list[int] = ids[order].tolist()
        return first


POLICY = EvictionKind(
    name="lru",
    make=LeastRecentlyUsed,
    summary="least recently used, per layer",
    source="the reference semantics of the trace format",
)
