"""Belady's optimum: what a cache could do that knew every pass to come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInputError
from .ranked import RankedCache
from .registry import CacheKind


class BeladyCache(RankedCache):
    """Keeps, of what is there and what the pass used, the experts whose next use is nearest.

    No cache that starts empty and brings in an expert only for a pass that uses it misses less on
    the same passes, whatever it evicts and whether or not it keeps what it has just loaded: a hit
    is a pair of consecutive uses of an expert between which it was kept, every layer can keep
    ``slots`` at a time, and dropping the pair that ends last leaves the most pairs whole (interval
    scheduling on ``slots`` machines).

    Notes
    -----
    Knows the passes from :meth:`foresee`: O(T L E) time and memory for T passes.
    """

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        super().__init__(n_layers, n_experts, slots)
        self.foresee([])

    def foresee(self, passes: Sequence[NDArray[np.bool_]]) -> None:
        """Learn what all coming passes use."""
        self._passes = [np.array(used) for used in passes]
        self._now = 0
        never = len(passes)
        self._next = np.empty((never, *self._shape), dtype=np.int32)
        following = np.full(self._shape, never, dtype=np.int32)
        for number in reversed(range(never)):
            self._next[number] = following
            following[passes[number]] = number

    def _note(self, used: NDArray[np.bool_]) -> None:
        if self._now >= len(self._passes) or not np.array_equal(self._passes[self._now], used):
            raise InvalidInputError(
                f"pass {self._now} is not the one that belady was told of; give all passes to "
                "foresee, in their order, before the first"
            )
        self._now += 1

    def _rank(self) -> NDArray[np.int32]:
        rank: NDArray[np.int32] = len(self._passes) - self._next[self._now - 1]
        return rank


CACHE = CacheKind(
    name="belady",
    make=BeladyCache,
    summary="farthest next use first: the fewest misses that the same passes allow, for comparison",
    source="Belady 1966, doi:10.1147/sj.52.0078",
    clairvoyant=True,
)
