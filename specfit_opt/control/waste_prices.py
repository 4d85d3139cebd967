"""What an expert costs when only loads that the text does not need are charged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class WastePrices:
    r"""Prices of experts that count only unneeded loads, for a tree that grows.

    Plain decoding loads the experts of every token of the text too, unless they are in fast memory
    by then. Loading them with a draft token that turns out to be accepted is no cost of drafting,
    only earlier. What drafting costs is the loads that no committed token uses: an expert of price
    :math:`w_e` costs :math:`w_e (1 - \pi_e)`, where :math:`\pi_e` is the probability that the
    target's path through the tree meets :math:`e`,

    .. math:: \pi_e = \sum \{ p(v) : v \text{ uses } e \text{ and none of its ancestors does} \},

    exact, because at most one of these nodes is on the path. The root's experts cost nothing.

    Parameters
    ----------
    expert_time : ndarray of float64, shape (L, E)
        Seconds to bring in each expert.
    """

    def __init__(self, expert_time: NDArray[np.float64]) -> None:
        self._time = expert_time
        n_layers, self._n_experts = expert_time.shape
        # Experts are numbered over all layers; a last column of each layer takes the padding, -1.
        self._width = self._n_experts + 1
        self._offset = np.arange(n_layers, dtype=np.int64)[:, None] * self._width
        self._met = np.zeros(n_layers * self._width)
        self._first = 0
        self._path_uses = np.zeros((0, n_layers * self._width), dtype=np.bool_)

    def extend(
        self, parent: NDArray[np.int64], path_prob: NDArray[np.float64], experts: NDArray[np.int32]
    ) -> None:
        """Add a level; every parent is in the level before it.

        Parameters
        ----------
        parent : ndarray of int64, shape (m,)
            Node ids; -1 for the root, which comes alone first.
        path_prob : ndarray of float64, shape (m,)
        experts : ndarray of int32, shape (m, L, k)
            Distinct per node and layer, -1 pads.
        """
        m = len(parent)
        # Padding, -1, falls into the last column of the layer before, and of the last layer.
        used = (experts + self._offset).reshape(m, -1)
        row = np.arange(m)[:, None]
        if self._first or len(self._path_uses):
            path_uses = self._path_uses[parent - self._first]
            self._first += len(self._path_uses)
        else:
            path_uses = np.zeros((m, self._path_uses.shape[1]), dtype=np.bool_)
        weight = path_prob[:, None] * ~path_uses[row, used]
        used[used < 0] += len(self._met)
        self._met += np.bincount(used.ravel(), weight.ravel(), minlength=len(self._met))
        path_uses[row, used] = True
        self._path_uses = path_uses

    def table(self) -> NDArray[np.float64]:
        """Return the price of each expert, seconds, shape (L, E)."""
        met = self._met.reshape(-1, self._width)[:, : self._n_experts]
        price: NDArray[np.float64] = self._time * (1.0 - np.minimum(met, 1.0))
        return price
