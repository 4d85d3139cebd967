"""LRU-2: by the last use but one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        super().__init__(n_layers, n_experts)
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)
        self._before = np.zeros((n_layers, n_experts), dtype=np.int64)

    def _note(self, layer: int, experts: Sequence[int]) -> None:
        self._now += 1
        self._before[layer, experts] = self._last[layer, experts]
        self._last[layer, experts] = self._now

    def admit(self, layer: int, expert: int) -> None:
        """Only uses count."""

    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        return (self._before[layer, ids], self._last[layer, ids])


POLICY = EvictionKind(
    name="lru-2",
    make=LastUseButOne,
    summary="by the last use but one, so that a single use does not keep a slot",
    source="O'Neil, O'Neil and Weikum 1993, doi:10.1145/170035.170081",
)
