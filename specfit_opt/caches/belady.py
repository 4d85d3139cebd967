"""Belady's optimum: what a cache could do that knew every pass to come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .eviction_rule import CacheRule, EvictionRule, Layers


class FarthestNextUse(EvictionRule):
    """Gives up the expert whose next use is farthest away.

    No cache that starts empty and brings in an expert only for a pass that uses it misses less on
    the same passes, whatever it evicts and whether or not it keeps what it has just loaded: a hit
    is a pair of consecutive uses of an expert between which it was kept, every layer can keep its
    number of slots at a time, and dropping the pair that ends last leaves the most pairs whole
    (interval scheduling on that many machines).

    Parameters
    ----------
    n_layers, n_experts : int

    Notes
    -----
    Knows the passes from :meth:`foresee`: O(T L E) time and memory for T passes. Passes run over
    all layers at once.
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._shape = n_layers, n_experts
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

    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that the next pass begins.

        Raises
        ------
        InvalidInputError
            If it is not the one that was foreseen.
        """
        if self._now >= len(self._passes) or not np.array_equal(self._passes[self._now], used):
            raise InvalidInputError(
                f"pass {self._now} is not the one that belady was told of; give all passes to "
                "foresee, in their order, before the first"
            )
        self._now += 1

    def rank(self, layer: Layers = ...) -> NDArray[np.int32]:
        """Return how near the next use of each expert is."""
        rank: NDArray[np.int32] = len(self._passes) - self._next[self._now - 1][layer]
        return rank


RULE = CacheRule(
    name="belady",
    make=FarthestNextUse,
    summary="farthest next use first: the fewest misses that the same passes allow, for comparison",
    source="Belady 1966, doi:10.1147/sj.52.0078",
    clairvoyant=True,
)
