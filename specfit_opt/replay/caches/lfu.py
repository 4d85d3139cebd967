"""Least frequently used, with aging."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .ranked import RankedCache
from .registry import CacheKind

#: What a use is still worth one committed token later; 0.9 halves a count in about 7 tokens. Of
#: 0.98, 0.95, 0.9, 0.85 and 0.8 the one that does well on all recorded traces. A slower one holds
#: on to the experts of the last topic, a faster one forgets what is popular.
DECAY = 0.9


class LFUCache(RankedCache):
    """Keeps the experts used most, each use worth less by :data:`DECAY` a committed token.

    Uses while not resident count too. Passes over trees bring many uses at a time; aged by passes,
    what they use once would outlive what the text uses again and again.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        super().__init__(n_layers, n_experts, slots)
        self._count = np.zeros(self._shape)

    def _note(self, used: NDArray[np.bool_]) -> None:
        self._count *= DECAY
        self._count += used

    def committed(self, tokens: int) -> None:
        """Let uses age by the tokens beyond the one that every pass counts for."""
        if tokens > 1:
            self._count *= DECAY ** (tokens - 1)

    def _rank(self) -> NDArray[np.float64]:
        return self._count


CACHE = CacheKind(
    name="lfu",
    make=LFUCache,
    summary="least frequently used, per layer; a use loses 10 % of its weight a token",
    source="Lee et al. 2001 (LRFU), doi:10.1109/TC.2001.970573",
)
