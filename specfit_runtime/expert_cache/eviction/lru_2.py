"""LRU-2: by the last use but one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .registry import EvictionKind, EvictionPolicy


class LastUseButOne(EvictionPolicy):
    """Gives up the expert whose last use but one is longest ago.

    An expert used only once goes before all that were used twice, so that a pass that happens to
    touch many experts does not push out those that come back. Among equals the older last use
    goes first, then the smaller id. Uses while not resident count too.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)
        self._before = np.zeros((n_layers, n_experts), dtype=np.int64)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Note that one pass uses these experts."""
        self._now += 1
        self._before[layer, experts] = self._last[layer, experts]
        self._last[layer, experts] = self._now

    def admit(self, layer: int, expert: int) -> None:
        """Only uses count."""

    def victims(self, layer: int, candidates: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the candidates, the first to go first."""
        ids = np.array(candidates, dtype=np.int64)
        order = np.lexsort((ids, self._last[layer, ids], self._before[layer, ids]))[:count]
        first: list[int] = ids[order].tolist()
        return first


POLICY = EvictionKind(
    name="lru-2",
    make=LastUseButOne,
    summary="by the last use but one, so that a single use does not keep a slot",
    source="O'Neil, O'Neil and Weikum 1993, doi:10.1145/170035.170081",
)
