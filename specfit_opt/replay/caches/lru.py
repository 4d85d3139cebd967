"""The reference cache: least recently used, per layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...arrays import frozen
from .registry import Cache, CacheKind


class LRUCache(Cache):
    """Per layer the ``slots`` experts used last; empty at first.

    A pass stamps every expert that it uses with its number, and only then evicts, smallest stamp
    first and smallest expert id among equals. So a pass that uses more experts than there are slots
    still loads each of them once, and leaves those of the largest ids.

    Parameters
    ----------
    n_layers, n_experts : int
    slots : int
        Experts per layer that stay, >= 0.

    Notes
    -----
    :meth:`use` takes O(L E) time.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        self.slots = slots
        self._pass = 0
        self._ids = np.arange(n_experts, dtype=np.int64)
        # Stamp and id in one number, which orders experts as eviction does; -1: not resident.
        self._keys = np.full((n_layers, n_experts), -1, dtype=np.int64)
        self._resident = frozen(np.zeros((n_layers, n_experts), dtype=np.bool_))

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): what is in fast memory now."""
        return self._resident

    @property
    def stamps(self) -> NDArray[np.int64]:
        """Number of the pass that last used each resident expert, shape (L, E); 0: not resident."""
        return np.where(self._resident, self._keys // len(self._ids), 0)

    def use(
        self, used: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Run one pass over the experts ``used``, shape (L, E); return those that were missing."""
        keys, n_experts = self._keys, len(self._ids)
        missed: NDArray[np.bool_] = used & ~self._resident
        self._pass += 1
        np.copyto(keys, self._pass * n_experts + self._ids, where=used)
        if self.slots < n_experts:
            # Keys are distinct within a layer, so exactly `slots` of them exceed the one below.
            cut = n_experts - self.slots - 1
            last_out = np.partition(keys, cut, axis=1)[:, cut : cut + 1]
            np.copyto(keys, -1, where=keys <= last_out)
        self._resident = frozen(keys >= 0)
        return missed

    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Go on with the experts ``resident``, shape (L, E)."""
        self._keys = np.where(resident, np.maximum(self._keys, self._ids), -1)
        self._resident = frozen(np.array(resident))


CACHE = CacheKind(
    name="lru",
    make=LRUCache,
    summary="least recently used, per layer; empty at the start of a prompt",
    source="reference semantics of the trace format",
)
