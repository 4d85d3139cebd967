"""From the logits of early states to those that the router will give, fitted while decoding."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: The identity counts as so many tokens.
_PRIOR = 32.0
#: What a token is still worth one token later: the last 4,096 count.
_KEEP = 1.0 - 1.0 / 4096.0
#: Tokens that are taken in at a time.
_BATCH = 16
#: Tokens before the first fit, and their share of all after which the next one is due.
_FIRST, _SHARE = 48.0, 0.125


class LogitMap:
    """A linear map with an offset, by ridge regression around the identity.

    Parameters
    ----------
    n_experts : int

    Attributes
    ----------
    matrix : ndarray of float32, shape (E, E)
    offset : ndarray of float32, shape (E,)
        Logits ``x`` of early states lead to ``x @ matrix + offset``.

    Notes
    -----
    What attention, and before it the experts of the layer above, will add to the states is not
    known, but its mean and what follows linearly from the states is. Taking in T tokens takes
    :math:`O(T E^2)` time, a fit :math:`O(E^3)`; fits get rarer as tokens add up. Memory:
    :math:`O(E^2)`. Fitted maps between layers: arXiv:2511.10676, arXiv:2502.12224.
    """

    def __init__(self, n_experts: int) -> None:
        size = n_experts + 1
        self._gram = np.zeros((size, size))
        self._cross = np.zeros((size, n_experts))
        self._seen, self._due = 0.0, _FIRST
        self._rows: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._held = 0
        self.matrix = np.eye(n_experts, dtype=np.float32)
        self.offset = np.zeros(n_experts, dtype=np.float32)

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits to expect, shape (T, E)."""
        return logits @ self.matrix + self.offset

    def learn(self, early: NDArray[np.float32], true: NDArray[np.float32]) -> bool:
        """Take in the logits of early states and those that the router gave, shape (T, E) each.

        Returns
        -------
        bool
            Whether the map was fitted anew.
        """
        self._rows.append((early, true))
        self._held += len(early)
        if self._held < _BATCH:
            return False
        early, true = (np.concatenate(part) for part in zip(*self._rows, strict=True))
        self._rows.clear()
        self._held = 0
        rows = np.ones((len(early), early.shape[1] + 1))
        rows[:, :-1] = early
        keep = _KEEP ** len(rows)
        self._gram *= keep
        self._gram += rows.T @ rows
        self._cross *= keep
        self._cross += rows.T @ (true - early)
        self._seen = keep * self._seen + len(rows)
        self._due -= len(rows)
        if self._due > 0.0:
            return False
        self._due = max(_FIRST, _SHARE * self._seen)
        self._fit()
        return True

    def _fit(self) -> None:
        n = len(self.offset)
        ridge = _PRIOR * np.trace(self._gram[:n, :n]) / (n * self._seen)
        penalised = self._gram + ridge * np.eye(n + 1)
        change = np.linalg.solve(penalised, self._cross)
        self.matrix = (np.eye(n) + change[:n]).astype(np.float32)
        self.offset = change[n].astype(np.float32)
