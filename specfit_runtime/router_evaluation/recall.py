"""Top-k recall: the share of a node's true experts that were predicted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Nodes that are compared at once, which bounds the memory.
_BLOCK = 1 << 14


def node_recall(
    predicted: NDArray[np.integer], true: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the recall of each node in each layer.

    Parameters
    ----------
    predicted, true : ndarray of int, shape (N, L, k)
        -1 pads; a padded entry of ``true`` does not count.

    Returns
    -------
    ndarray of float32, shape (N, L)
        NaN where a node uses no expert of a layer.

    Notes
    -----
    O(N L k^2).
    """
    recall = np.empty(true.shape[:2], dtype=np.float32)
    for at in range(0, len(true), _BLOCK):
        part = slice(at, at + _BLOCK)
        wanted = true[part] >= 0
        hit = (true[part, :, :, None] == predicted[part, :, None, :]).any(axis=3) & wanted
        with np.errstate(invalid="ignore"):
            recall[part] = hit.sum(axis=2) / wanted.sum(axis=2)
    return recall


def recall_by_depth(
    recall: NDArray[np.float32], depth: NDArray[np.integer], levels: int
) -> NDArray[np.float64]:
    """Return the mean recall by depth, 0 to ``levels``, and layer, shape (levels + 1, L).

    NaN where there is no node.
    """
    table = np.full((levels + 1, recall.shape[1]), np.nan)
    for d in range(levels + 1):
        rows = recall[depth == d]
        known = np.isfinite(rows)
        count = known.sum(axis=0)
        total = np.where(known, rows, 0.0).sum(axis=0, dtype=np.float64)
        table[d] = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return table
