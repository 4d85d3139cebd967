"""Least recently used: the reference semantics of the trace format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .eviction_rule import CacheRule, EvictionRule, Layers


class LeastRecentlyUsed(EvictionRule):
    """Gives up the expert whose last use is longest ago.

    What is loaded ahead of its use counts as used: it is expected to be, next.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)

    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that a pass uses these experts."""
        self._now += 1
        np.copyto(self._last[layer], self._now, where=used)

    def load(self, loaded: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that these experts are loaded."""
        np.copyto(self._last[layer], self._now, where=loaded)

    def rank(self, layer: Layers = ...) -> NDArray[np.int64]:
        """Return when each expert was used last."""
        return self._last[layer]


RULE = CacheRule(
    name="lru",
    make=LeastRecentlyUsed,
    summary="least recently used, per layer",
    source="reference semantics of the trace format",
)
