"""Least frequently used, with aging."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ranked import RankedCache
from .registry import CacheKind

#: What a use is still worth one pass later. 0.9 halves a count in about 7 passes: of 0.98, 0.95,
#: 0.9, 0.85 and 0.8 the one that does well on all recorded traces. A slower one holds on to the
#: experts of the last topic, a faster one forgets what is popular.
DECAY = 0.9


class LFUCache(RankedCache):
    """Keeps the experts used most, each use worth less by :data:`DECAY` a pass.

    Uses while not resident count too.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        super().__init__(n_layers, n_experts, slots)
        self._count = np.zeros(self._shape)

    def _note(self, used: NDArray[np.bool_]) -> None:
        self._count *= DECAY
        self._count += used

    def _rank(self) -> NDArray[np.float64]:
        return self._count


CACHE = CacheKind(
    name="lfu",
    make=LFUCache,
    summary="least frequently used, per layer; a use loses 10 % of its weight a pass",
    source="Lee et al. 2001 (LRFU), doi:10.1109/TC.2001.970573",
)
