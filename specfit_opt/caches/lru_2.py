"""LRU-2: by the last use but one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .eviction_rule import CacheRule, EvictionRule, Layers

# Uses are numbered up to what fits into so many bits; then the older half of the numbers become 0.
_BITS = 23
_LATEST = 2**_BITS - 1
_FORGET = 2 ** (_BITS - 1)


class LastUseButOne(EvictionRule):
    """Gives up the expert whose last use but one is longest ago, among equals the one used first.

    An expert used only once goes before all that were used twice, so that a pass that happens to
    use many experts does not push out those that come back. Uses while not in a slot count too.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._now = 0
        self._last = np.zeros((n_layers, n_experts), dtype=np.int64)
        self._before = np.zeros((n_layers, n_experts), dtype=np.int64)

    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that a pass uses these experts."""
        if self._now == _LATEST:
            self._now -= _FORGET
            for at in (self._last, self._before):
                np.maximum(at - _FORGET, 0, out=at)
        self._now += 1
        np.copyto(self._before[layer], self._last[layer], where=used)
        np.copyto(self._last[layer], self._now, where=used)

    def rank(self, layer: Layers = ...) -> NDArray[np.int64]:
        """Return the last use but one and the last in one number."""
        rank: NDArray[np.int64] = self._before[layer] << _BITS | self._last[layer]
        return rank


RULE = CacheRule(
    name="lru-2",
    make=LastUseButOne,
    summary="by the last use but one, so that a single use does not keep a slot",
    source="O'Neil, O'Neil and Weikum 1993, doi:10.1145/170035.170081",
)
