"""From times measured at some sizes to a table over all sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Sizes that are measured: closely where trees usually are, widely beyond.
_GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def grid(max_nodes: int) -> tuple[int, ...]:
    """Return the sizes up to ``max_nodes`` that are measured; it is the last one."""
    return (*(n for n in _GRID if n < max_nodes), max_nodes)


def non_falling(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the non-falling sequence that is closest to ``values`` in the squares.

    Notes
    -----
    Pool adjacent violators, O(n): a dip becomes the mean of the entries that it contradicts, where
    a running maximum would keep what was measured too slow and lift all that follows.
    """
    pools: list[tuple[float, int]] = []  # mean and number of entries
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            above, others = pools.pop()
            mean = (mean * count + above * others) / (count + others)
            count += others
        pools.append((mean, count))
    return np.concatenate([np.full(count, mean) for mean, count in pools])


def node_table(sizes: Sequence[int], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Return the time of a pass over 1 to ``sizes[-1]`` tokens.

    Parameters
    ----------
    sizes : sequence of int
        Those that were measured, rising from 1.
    seconds : sequence of float
        What they took.

    Returns
    -------
    ndarray of float64, shape (sizes[-1],)
        Made not to fall, and interpolated linearly between the sizes.
    """
    table = np.interp(np.arange(1, sizes[-1] + 1), sizes, non_falling(seconds))
    # Interpolation may round below the entry before.
    return np.maximum.accumulate(table)
