"""LRU-2: by the last use but one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ranked import RankedCache
from .registry import CacheKind


class LRU2Cache(RankedCache):
    """Keeps the experts whose last use but one is most recent, then those used last.

    An expert used only once goes before all that were used twice. Uses while not resident count
    too.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        super().__init__(n_layers, n_experts, slots)
        self._pass = 0
        self._last = np.zeros(self._shape, dtype=np.int64)
        self._before = np.zeros(self._shape, dtype=np.int64)

    def _note(self, used: NDArray[np.bool_]) -> None:
        self._pass += 1
        np.copyto(self._before, self._last, where=used)
        np.copyto(self._last, self._pass, where=used)

    def _rank(self) -> NDArray[np.int64]:
        return self._before << 32 | self._last


CACHE = CacheKind(
    name="lru-2",
    make=LRU2Cache,
    summary="by the last use but one, so that a single use does not keep a slot",
    source="O'Neil, O'Neil and Weikum 1993, doi:10.1145/170035.170081",
)
