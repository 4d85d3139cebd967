"""The expert cache as plain decoding would have left it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..expert_union import expert_union


class PlainCache:
    """Simulates the expert cache, fed with the committed tokens alone, one a pass.

    Parameters
    ----------
    cache_policy : str
        What it evicts, by name.
    slots : ndarray of int64, shape (L,)
    n_experts : int

    Raises
    ------
    InvalidInputError
        If there is no such cache policy.
    """

    def __init__(self, cache_policy: str, slots: NDArray[np.int64], n_experts: int) -> None:
        from ..replay.caches import get_cache

        kind = get_cache(cache_policy)
        # A simulated cache has as many slots in all of its layers.
        self._parts: list[tuple[NDArray[np.int64], Any]] = []
        for size in np.unique(slots):
            layers = np.flatnonzero(slots == size)
            self._parts.append((layers, kind.make(len(layers), n_experts, int(size))))
        self._shape = len(slots), n_experts

    @property
    def resident(self) -> NDArray[np.bool_]:
        """What plain decoding would have in the cache, shape (L, E)."""
        resident = np.empty(self._shape, dtype=np.bool_)
        for layers, cache in self._parts:
            resident[layers] = cache.resident
        return resident

    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Go on with what is in the real cache, keeping what is known of earlier uses.

        Parameters
        ----------
        resident : ndarray of bool, shape (L, E)
        """
        for layers, cache in self._parts:
            cache.take_over(resident[layers])

    def run(self, experts: NDArray[np.integer]) -> NDArray[np.int64]:
        """Run tokens one after the other.

        Parameters
        ----------
        experts : ndarray of int, shape (n, L, k)
            True experts, distinct per token and layer; -1 pads.

        Returns
        -------
        ndarray of int64, shape (L,)
            Experts that had to be loaded.

        Notes
        -----
        O(n L E log E).
        """
        missed = np.zeros(self._shape[0], dtype=np.int64)
        for token in experts:
            used = expert_union(token[None], self._shape[1])
            for layers, cache in self._parts:
                missed[layers] += np.count_nonzero(cache.use(used[layers]), axis=1)
        return missed
