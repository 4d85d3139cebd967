"""First in, first out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ranked import RankedCache
from .registry import CacheKind


class FIFOCache(RankedCache):
    """Keeps what was loaded last, however often the rest was used since."""

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        super().__init__(n_layers, n_experts, slots)
        self._pass = 0
        self._came = np.zeros(self._shape, dtype=np.int64)

    def _note(self, used: NDArray[np.bool_]) -> None:
        self._pass += 1
        np.copyto(self._came, self._pass, where=used & ~self._resident)

    def _rank(self) -> NDArray[np.int64]:
        return self._came


CACHE = CacheKind(
    name="fifo",
    make=FIFOCache,
    summary="first in, first out: a baseline that ignores use",
    source="Belady, Nelson and Shedler 1969, doi:10.1145/363011.363155",
)
