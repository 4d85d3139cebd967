"""How often a missing expert that the early guess names comes to be used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Lower ends of the bins of margins; 1 is the mean margin of the experts that a layer chooses.
EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2], dtype=np.float32)
#: What a pass is still worth one pass later.
_KEEP = 1.0 - 1.0 / 512.0
#: Before anything was seen one guess in four is right, and that counts as four guesses.
_RIGHT, _SEEN = 1.0, 4.0
#: All layers together count as so many guesses of each.
_POOLED = 8.0


class Precision:
    """Chance of use for each layer and bin of margins, of experts that are missing.

    Those that are easy to foresee are mostly there, so among missing ones guesses are right less
    often than among all, and how much less depends on the cache.

    Parameters
    ----------
    n_layers : int
    """

    def __init__(self, n_layers: int) -> None:
        self._right = np.zeros((n_layers, len(EDGES)))
        self._seen = np.zeros((n_layers, len(EDGES)))

    def learn(
        self,
        layers: NDArray[np.int64],
        margins: NDArray[np.float32],
        used: NDArray[np.bool_],
    ) -> None:
        """Take in the missing experts of one pass with margins above 0, shape (n,) each."""
        bins = np.searchsorted(EDGES, margins, side="right") - 1
        self._seen *= _KEEP
        self._right *= _KEEP
        np.add.at(self._seen, (layers, bins), 1.0)
        np.add.at(self._right, (layers, bins), used)

    def chances(self) -> NDArray[np.float64]:
        """Return the chance of use, shape (L, bins), not falling along the bins."""
        right, seen = self._right.sum(axis=0), self._seen.sum(axis=0)
        pooled = (right + _RIGHT) / (seen + _SEEN)
        chance = (self._right + _POOLED * pooled) / (self._seen + _POOLED)
        raised: NDArray[np.float64] = np.maximum.accumulate(chance, axis=1)
        return raised
