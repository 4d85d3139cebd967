"""Which guesses are worth fetching early, and whether guessing pays at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .precision import EDGES

#: What a fetch in vain costs, in transfers: it occupies the link, puts out another expert, and
#: its bytes are counted.
_VAIN = 3.0
#: Early fetches of a layer in a pass, at most.
_MOST = 8
#: What a pass is still worth one pass later.
_KEEP = 15.0 / 16.0
#: Passes before the first judgement whether guessing pays, and of each later trial.
_FIRST, _TRIAL = 64, 8
#: Passes between two trials while it does not; a trial that fails doubles them.
_REST, _LONGEST_REST = 64, 1024


class Judgement:
    r"""Learns what early fetches hide and cost, per layer, and decides.

    Parameters
    ----------
    n_layers : int

    Notes
    -----
    Of a layer's early fetches the i-th begins when those before it are over. It hides what of its
    transfer fits into the time from when the link became free to when the layer asks: with that
    time :math:`w` and a transfer of :math:`d`, :math:`h_i = \min(d, \max(0, w - (i - 1) d))`. A
    guess with the chance :math:`p` of use is fetched where :math:`p h_i > (1 - p) 3 d`.
    """

    def __init__(self, n_layers: int) -> None:
        self._window = np.zeros(n_layers)
        self._known = np.zeros(n_layers, dtype=np.bool_)
        self._limits: list[list[float]] = [[] for _ in range(n_layers)]
        self._hidden = self._asked = 0.0
        self._left, self._rest = _FIRST, _REST
        self.pays = True

    def note_window(self, layer: int, seconds: float) -> None:
        """Note how long the link was free before a layer asked for its experts."""
        seconds = max(seconds, 0.0)
        if self._known[layer]:
            self._window[layer] += (seconds - self._window[layer]) * (1.0 - _KEEP)
        else:
            self._window[layer], self._known[layer] = seconds, True

    def limits(self, layer: int) -> list[float]:
        """Return the least margins of the first, second, ... expert to fetch early."""
        return self._limits[layer]

    def update(self, chances: NDArray[np.float64], transfer: NDArray[np.float64]) -> None:
        """Decide anew what is worth fetching.

        Parameters
        ----------
        chances : ndarray of float64, shape (L, bins)
            Not falling along the bins.
        transfer : ndarray of float64, shape (L,)
            Seconds to bring in one expert.
        """
        before = np.arange(_MOST)[None] * transfer[:, None]
        hides = np.clip(self._window[:, None] - before, 0.0, transfer[:, None])
        vain = _VAIN * transfer[:, None]
        with np.errstate(invalid="ignore"):
            least = np.where(hides > 0.0, vain / (hides + vain), 2.0)
        first = (chances[:, None, :] <= least[:, :, None]).sum(axis=2)
        edges = EDGES.tolist()
        self._limits = [
            [edges[i] for i in row if i < len(edges)] for row in first.tolist()
        ]

    def note_pass(self, hidden: float, asked: float) -> None:
        """Note what a pass hid, and how long guessing took where nothing was waited for."""
        self._hidden = _KEEP * self._hidden + hidden
        self._asked = _KEEP * self._asked + asked
        self._left -= 1
        if self._left > 0:
            return
        if self._hidden > self._asked:
            self._rest = _REST
            return
        self.pays = False
        self._left, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
        self._hidden = self._asked = 0.0

    def tick(self) -> None:
        """Count a pass without guesses; the last one of a rest begins a trial."""
        self._left -= 1
        if self._left <= 0:
            self.pays, self._left = True, _TRIAL
