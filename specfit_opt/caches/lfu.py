"""Least frequently used, with aging."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .eviction_rule import CacheRule, EvictionRule, Layers

#: What a use is still worth one committed token later; 0.9 halves a count in about 7 tokens. Of
#: 0.98, 0.95, 0.9, 0.85 and 0.8 the one that does well on all recorded traces. A slower one holds
#: on to the experts of the last topic, a faster one forgets what is popular.
DECAY = 0.9


class LeastFrequentlyUsed(EvictionRule):
    """Gives up the expert with the fewest uses, each worth less by :data:`DECAY` a committed token.

    Uses while not in a slot count too, so that what a pass loads takes no slot from what is used
    more often. Passes over trees bring many uses at a time; aged by passes, what they use once
    would outlive what the text uses again and again.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._count = np.zeros((n_layers, n_experts))

    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that a pass uses these experts, and let earlier uses age by a token."""
        count = self._count[layer]
        count *= DECAY
        count += used

    def committed(self, tokens: int) -> None:
        """Let uses age by the tokens beyond the one that every pass counts for."""
        if tokens > 1:
            self._count *= DECAY ** (tokens - 1)

    def rank(self, layer: Layers = ...) -> NDArray[np.float64]:
        """Return what the uses of each expert are worth now."""
        return self._count[layer]


RULE = CacheRule(
    name="lfu",
    make=LeastFrequentlyUsed,
    summary="least frequently used, per layer; a use loses 10 % of its weight a token",
    source="Lee et al. 2001 (LRFU), doi:10.1109/TC.2001.970573",
)
