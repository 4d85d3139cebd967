"""The kernel in plain Python: the same functions as the compiled module, bitsets as big integers.

It exists for differential tests and for platforms without a compiler. Same algorithm, written to
be read rather than to be fast; :mod:`specfit_opt.kernel` says how it is selected.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAME = "python"


def pack(
    experts: NDArray[np.integer], n_experts: int
) -> tuple[NDArray[np.uint64], int]:
    """Pack expert ids into bit rows.

    Parameters
    ----------
    experts : ndarray of int16, int32 or int64, shape (n, L, k), contiguous
    n_experts : int

    Returns
    -------
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
    bad : int
        Flat index of the first id outside [-1, n_experts), or -1. ``rows`` is then incomplete.
    """
    n, n_layers, k = experts.shape
    words = -(-n_experts // 64)
    rows = np.zeros((n, n_layers * words), dtype=np.uint64)
    flat = experts.reshape(-1)
    outside = np.flatnonzero((flat < -1) | (flat >= n_experts))
    if outside.size:
        return rows, int(outside[0])
    node, layer, slot = np.nonzero(experts >= 0)
    ids = experts[node, layer, slot].astype(np.int64)
    bits = np.left_shift(np.uint64(1), (ids % 64).astype(np.uint64))
    np.bitwise_or.at(rows, (node, layer * words + ids // 64), bits)
    return rows, -1


def evaluate(
    mask: NDArray[np.bool_],
    path_prob: NDArray[np.float64],
    rows: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    expert_time: NDArray[np.float64],
    resident_time: float,
) -> tuple[float, float, NDArray[np.int64], NDArray[np.int64]]:
    """Evaluate a set of nodes.

    Parameters
    ----------
    mask : ndarray of bool, shape (n,)
    path_prob : ndarray of float64, shape (n,)
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
    resident : ndarray of bool, shape (L, E)
    expert_time : ndarray of float64, shape (L,) or (L, E)
    resident_time : float

    Returns
    -------
    expected_tokens, transfer_time : float
    experts_loaded, experts_used : ndarray of int64, shape (L,)
    """
    n_layers, n_experts = resident.shape
    union = np.bitwise_or.reduce(rows[mask], axis=0).reshape(n_layers, -1)
    used = np.unpackbits(union.view(np.uint8), axis=1, bitorder="little")[:, :n_experts] != 0
    time = expert_time if expert_time.ndim == 2 else expert_time[:, None]
    transfer = float(np.where(used, np.where(resident, resident_time, time), 0.0).sum())
    loaded = (used & ~resident).sum(axis=1, dtype=np.int64)
    return float(path_prob[mask].sum()), transfer, loaded, used.sum(axis=1, dtype=np.int64)
