"""Least frequently used, with aging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.replay.caches.lfu import DECAY

from .registry import EvictionKind, EvictionPolicy

# Counts are kept in units that grow by 1 / DECAY a token, so that only the new uses are written.
# Before the unit outgrows what a float64 holds beside it, everything is scaled back.
_LARGEST_UNIT = 1e100


class LeastFrequentlyUsed(EvictionPolicy):
    """Gives up the expert with the fewest uses, each worth less a pass.

    A use is worth :data:`~specfit_opt.replay.caches.lfu.DECAY` of what it was a committed token
    before. Uses while not resident count too, so that what a pass brings in takes no slot from what
    is used more often.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        super().__init__(n_layers, n_experts)
        self._unit = [1.0] * n_layers
        self._count = np.zeros((n_layers, n_experts))

    def _note(self, layer: int, experts: Sequence[int]) -> None:
        self._age(layer, 1)
        self._count[layer, experts] += self._unit[layer]

    def committed(self, tokens: int) -> None:
        """Let uses age by the tokens beyond the one that every pass counts for."""
        if tokens > 1:
            for layer in range(len(self._unit)):
                self._age(layer, tokens - 1)

    def _age(self, layer: int, tokens: int) -> None:
        unit = self._unit[layer] / DECAY**tokens
        if unit > _LARGEST_UNIT:
            self._count[layer] /= unit
            unit = 1.0
        self._unit[layer] = unit

    def admit(self, layer: int, expert: int) -> None:
        """Only uses count."""

    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        return (self._count[layer, ids],)


POLICY = EvictionKind(
    name="lfu",
    make=LeastFrequentlyUsed,
    summary="least frequently used, per layer; a use loses 10 % of its weight a token",
    source="Lee et al. 2001 (LRFU), doi:10.1109/TC.2001.970573",
)
