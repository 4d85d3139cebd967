"""How likely the tokens that will be committed are to use each expert."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class PathWeights:
    r"""The probability that the target's path through a tree meets an expert.

    .. math:: \pi_e = \sum \{ p(v) : v \text{ uses } e \text{ and none of its ancestors does} \},

    exact, because at most one of these nodes is on the path.

    Parameters
    ----------
    parent : array_like of int, shape (n,)
        -1 for the root, which comes first; parents come before their children.
    path_prob : array_like of float, shape (n,)
        Probability that each node and all its ancestors are accepted; 1 for the root.

    Notes
    -----
    The first :meth:`of` takes O(n^2), and each O(n^2 E) per layer.

    Examples
    --------
    >>> import numpy as np
    >>> paths = PathWeights([-1, 0, 0], [1.0, 0.6, 0.3])
    >>> paths.of(np.array([[[0, 1]], [[1, 2]], [[2, 3]]]), 4).round(3).tolist()
    [[1.0, 1.0, 0.9, 0.3]]
    """

    def __init__(self, parent: ArrayLike, path_prob: ArrayLike) -> None:
        self._parent = np.asarray(parent)
        self._path_prob = np.asarray(path_prob, dtype=np.float64)

    def of(self, experts: NDArray[Any], n_experts: int) -> NDArray[np.float64]:
        """Return the weight of every expert, shape (L, E), from 0 to 1.

        Parameters
        ----------
        experts : ndarray of int, shape (n, L, k)
            Experts of each node, -1 pads.
        n_experts : int
        """
        n, n_layers, _ = experts.shape
        # The column to the right takes the padding: -1 is the last one.
        uses = np.zeros((n_layers, n, n_experts + 1), dtype=np.float32)
        uses[np.arange(n_layers)[:, None], np.arange(n)[:, None, None], experts] = 1.0
        uses = uses[:, :, :-1]
        first = (uses > 0.0) & (np.matmul(self._above, uses) == 0.0)
        weight: NDArray[np.float64] = np.minimum(self._path_prob @ first, 1.0)
        return weight

    @cached_property
    def _above(self) -> NDArray[np.float32]:
        """Row v marks the ancestors of v, v excluded."""
        marks = np.zeros((len(self._parent), len(self._parent)), dtype=np.float32)
        for node, above in enumerate(self._parent.tolist()):
            if above >= 0:
                marks[node] = marks[above]
                marks[node, above] = 1.0
        return marks
