"""What caches have in common that keep the experts of highest rank."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import frozen
from .registry import Cache


class RankedCache(Cache):
    """Per layer ``slots`` experts; empty at first.

    A pass first notes what it uses, and only then evicts, the lowest rank first and the smallest
    expert id among equals. So a pass that uses more experts than there are slots still loads each
    of them once, and what it has just loaded is the first to go if it ranks lowest.

    Parameters
    ----------
    n_layers, n_experts : int
    slots : int
        Experts per layer that stay, >= 0.

    Notes
    -----
    :meth:`use` takes O(L E log E) time.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        self.slots = slots
        self._shape = (n_layers, n_experts)
        self._resident = frozen(np.zeros(self._shape, dtype=np.bool_))

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): what is in fast memory now."""
        return self._resident

    def use(
        self, used: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Run one pass over the experts ``used``, shape (L, E); return those that were missing."""
        missed: NDArray[np.bool_] = used & ~self._resident
        self._note(used)
        held = self._resident | used
        n_out = self._shape[1] - self.slots
        if n_out > 0:
            order = np.argsort(np.where(held, self._rank(), -1), axis=1, kind="stable")
            np.put_along_axis(held, order[:, :n_out], False, axis=1)
        self._resident = frozen(held)
        return missed

    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Go on with the experts ``resident``, shape (L, E)."""
        self._resident = frozen(np.array(resident))

    @abstractmethod
    def _note(self, used: NDArray[np.bool_]) -> None:
        """Note what a pass uses; ``self._resident`` is what was there before it."""

    @abstractmethod
    def _rank(self) -> NDArray[Any]:
        """Return the rank of every expert, shape (L, E), at least 0; the lowest goes first."""
