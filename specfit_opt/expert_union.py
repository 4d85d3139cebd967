"""Which experts a set of tokens uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def expert_union(experts: NDArray[Any], n_experts: int) -> NDArray[np.bool_]:
    """Return which experts of each layer some token uses.

    Parameters
    ----------
    experts : ndarray of int, shape (n, L, k)
        -1 pads.
    n_experts : int

    Returns
    -------
    ndarray of bool, shape (L, E)
    """
    n_layers = experts.shape[1]
    # The column to the right takes the padding: -1 is the last one.
    mask = np.zeros((n_layers, n_experts + 1), dtype=np.bool_)
    mask[np.arange(n_layers)[:, None], experts] = True
    return mask[:, :-1]
