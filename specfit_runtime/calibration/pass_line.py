"""From times of passes that were measured at some sizes to a line over all sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def measured_sizes(max_nodes: int) -> tuple[int, ...]:
    """Return the sizes that are measured: 1, 2, 4, 8 and so on, and ``max_nodes``."""
    doubled = (2**i for i in range(max_nodes.bit_length()))
    return tuple(sorted({*doubled, max_nodes}))


def closest_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the line that is closest to measured times of passes, in relative terms.

    Parameters
    ----------
    sizes : sequence of int
        Tokens of a pass; at least one size.
    seconds : sequence of float
        What passes of these sizes took.

    Returns
    -------
    tuple of float
        Seconds per pass and seconds per token, both >= 0. A single size gives no slope.
    """
    count = np.array(sizes, dtype=np.float64)
    time = np.maximum(np.array(seconds), 1e-12)
    if len(count) == 1:
        return float(time[0]), 0.0
    rows = np.column_stack([np.ones_like(count), count]) / time[:, None]
    fixed, slope = np.linalg.lstsq(rows, np.ones_like(time), rcond=None)[0]
    if slope < 0.0:
        # The best constant in the same measure.
        return float((1.0 / time).sum() / (1.0 / time**2).sum()), 0.0
    if fixed < 0.0:
        return 0.0, float((count / time).sum() / ((count / time) ** 2).sum())
    return float(fixed), float(slope)
