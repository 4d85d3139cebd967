"""The expert cache as plain decoding would have left it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PlainCache:
    """Simulates one least-recently-used cache per layer, fed with the committed tokens alone.

    A real cache of another kind is only approximated.

    Parameters
    ----------
    resident : ndarray of bool, shape (L, E)
        What is in the real cache at the beginning; copied.
    slots : ndarray of int64, shape (L,)
    """

    def __init__(self, resident: NDArray[np.bool_], slots: NDArray[np.int64]) -> None:
        n_layers, n_experts = resident.shape
        # A last column takes the padding, -1.
        self._stamp = np.full((n_layers, n_experts + 1), -1, dtype=np.int64)
        self._resident = np.zeros((n_layers, n_experts + 1), dtype=np.bool_)
        self._resident[:, :-1] = resident
        self._slots = slots
        self._layer = np.arange(n_layers)[:, None]
        self._clock = 0

    @property
    def resident(self) -> NDArray[np.bool_]:
        """What plain decoding would have in the cache, shape (L, E)."""
        return self._resident[:, :-1]

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
        O(n L k), and O(L E) more for each token that evicts something.
        """
        missed = np.zeros(len(self._slots), dtype=np.int64)
        for ids in experts:
            self._clock += 1
            new = ~self._resident[self._layer, ids] & (ids >= 0)
            missed += new.sum(axis=1)
            self._stamp[self._layer, ids] = self._clock
            if not new.any():
                continue
            self._resident[self._layer, ids] = True
            self._resident[:, -1] = False
            self._evict()
        return missed

    def _evict(self) -> None:
        resident = self.resident
        over = resident.sum(axis=1) - self._slots
        layers = np.flatnonzero(over > 0)
        if not layers.size:
            return
        stamp = np.where(resident[layers], self._stamp[layers, :-1], np.iinfo(np.int64).max)
        oldest = np.argsort(stamp, axis=1, kind="stable")[:, : int(over.max())]
        row, rank = np.nonzero(np.arange(oldest.shape[1]) < over[layers, None])
        self._resident[layers[row], oldest[row, rank]] = False
