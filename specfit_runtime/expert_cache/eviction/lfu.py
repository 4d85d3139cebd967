"""Least frequently used, with aging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .registry import EvictionKind, EvictionPolicy

#: What a use is still worth one pass later. 0.98 halves a count in about 34 passes: long enough to
#: tell popular experts from a coincidence, short enough to follow a change of topic.
DECAY = 0.98

# Counts are kept in units that grow by 1 / DECAY a pass, so that only the new uses are written.
# Before the unit outgrows what a float64 holds beside it, everything is scaled back.
_LARGEST_UNIT = 1e100


class LeastFrequentlyUsed(EvictionPolicy):
    """Gives up the expert with the fewest uses, each worth less by :data:`DECAY` a pass.

    Uses while not resident count too. Among equals the smaller id goes first.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._unit = [1.0] * n_layers
        self._count = np.zeros((n_layers, n_experts))

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Note that one pass uses these experts."""
        unit = self._unit[layer] / DECAY
        if unit > _LARGEST_UNIT:
            self._count[layer] /= unit
            unit = 1.0
        self._unit[layer] = unit
        self._count[layer, experts] += unit

    def admit(self, layer: int, expert: int) -> None:
        """Only uses count."""

    def victims(self, layer: int, candidates: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the candidates, the first to go first."""
        ids = np.array(candidates, dtype=np.int64)
        order = np.lexsort((ids, self._count[layer, ids]))[:count]
        first: list[int] = ids[order].tolist()
        return first


POLICY = EvictionKind(
    name="lfu",
    make=LeastFrequentlyUsed,
    summary="least frequently used, per layer; a use loses 2 % of its weight a pass",
    source="Lee et al. 2001 (LRFU), doi:10.1109/TC.2001.970573",
)
