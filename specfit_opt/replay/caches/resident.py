"""No cache: every expert is in fast memory from the start."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays import frozen
from .registry import Cache, CacheKind


class AllResident(Cache):
    """Every expert of every layer is resident, always."""

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        self.slots = slots
        self._resident = frozen(np.ones((n_layers, n_experts), dtype=np.bool_))
        self._missed = frozen(np.zeros((n_layers, n_experts), dtype=np.bool_))

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): all of it."""
        return self._resident

    def use(
        self, used: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Run one pass; nothing is ever missing."""
        return self._missed

    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Everything is there, whatever is said."""


CACHE = CacheKind(
    name="resident",
    make=AllResident,
    summary="every expert resident from the start; what a profile without a link uses",
    source="the setting of EcoSpec (arXiv 2607.12696)",
)
