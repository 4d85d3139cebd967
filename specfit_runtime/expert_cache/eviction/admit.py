"""LRU that lets experts of unlikely tokens pass through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.replay.caches.admit import LEAST_WEIGHT

from .lru import LeastRecentlyUsed
from .registry import EvictionKind


class AdmitLikely(LeastRecentlyUsed):
    """Gives up first what is to be brought in for unlikely tokens, then as LRU does.

    An expert that a committed token uses with a probability of less than
    :data:`~specfit_opt.replay.caches.admit.LEAST_WEIGHT` takes no slot from another.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        super().__init__(n_layers, n_experts)
        self._weight = np.ones((n_layers, n_experts))

    def touch(
        self,
        layer: int,
        experts: Sequence[int],
        demand: Sequence[int],
        weight: Sequence[float] | None = None,
    ) -> None:
        """Note that one pass uses these experts, and how likely a committed token does."""
        super().touch(layer, experts, demand)
        self._weight[layer, experts] = 1.0 if weight is None else weight

    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        weight = self._weight[layer, ids]
        unlikely = new & (weight < LEAST_WEIGHT)
        return (np.where(unlikely, weight, np.inf), *super()._rank(layer, ids, new))


POLICY = EvictionKind(
    name="admit",
    make=AdmitLikely,
    summary="lru, but what only unlikely draft tokens use takes no other's slot",
    source="admission as in TinyLFU (Einziger et al. 2017, doi:10.1145/3149371), by path "
    "probability in place of frequency",
    weighs=True,
    admission=True,
)
