"""LRU that lets experts of unlikely tokens pass through."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .lru import LRUCache
from .registry import CacheKind

#: An expert that a committed token uses with a smaller probability takes no slot from another.
LEAST_WEIGHT = 0.1


class AdmitCache(LRUCache):
    """LRU, but what a pass loads for unlikely tokens alone only ever gets a free slot.

    A pass first takes in as LRU does what weighs at least :data:`LEAST_WEIGHT`, and what was there.
    The others that it loaded then get the slots that are free, the heaviest first and the smallest
    id among equals.
    """

    def use(
        self, used: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Run one pass over the experts ``used``, shape (L, E); return those that were missing."""
        missed: NDArray[np.bool_] = used & ~self.resident
        if weight is not None:
            unlikely = missed & (weight < LEAST_WEIGHT)
            room = self.slots - np.count_nonzero(self.resident | (used & ~unlikely), axis=1)
            order = np.argsort(np.where(unlikely, -weight, np.inf), axis=1, kind="stable")
            place = np.argsort(order, axis=1)
            used = used & ~(unlikely & (place >= room[:, None]))
        super().use(used)
        return missed


CACHE = CacheKind(
    name="admit",
    make=AdmitCache,
    summary="lru, but what only unlikely draft tokens use takes no other's slot",
    source="admission as in TinyLFU (Einziger et al. 2017, doi:10.1145/3149371), by path "
    "probability in place of frequency",
    weighs=True,
)
