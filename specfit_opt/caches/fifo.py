"""First in, first out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .eviction_rule import CacheRule, EvictionRule, Layers


class FirstInFirstOut(EvictionRule):
    """Gives up the expert that was loaded longest ago, however often it was used since.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._now = 0
        self._loaded = np.zeros((n_layers, n_experts), dtype=np.int64)

    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Ignore it: uses do not count."""

    def load(self, loaded: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that these experts are loaded."""
        self._now += 1
        np.copyto(self._loaded[layer], self._now, where=loaded)

    def rank(self, layer: Layers = ...) -> NDArray[np.int64]:
        """Return when each expert was loaded last."""
        return self._loaded[layer]


RULE = CacheRule(
    name="fifo",
    make=FirstInFirstOut,
    summary="first in, first out: a baseline that ignores use",
    source="Belady, Nelson and Shedler 1969, doi:10.1145/363011.363155",
)
