"""The elementwise part between the two products of an expert."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .rows import Rows

# torch splits elementwise work on a CPU among threads from this many elements on.
_GRAIN = 32768

# Elements that a vectorised loop takes at a time are a divisor of this on all CPUs, in any type.
_VECTORS = 64


def apply_gate(module: Any, y: Tensor, rows: Rows, experts: list[int]) -> Tensor:
    """Return the gated activations of some experts' rows, computed at the places of stock.

    Parameters
    ----------
    module : stock experts module
    y : Tensor, shape (n, 2 I), or (n, I) without a gate
        Products of the rows of ``experts``, expert by expert.
    rows : Rows
        All rows of the pass.
    experts : list of int

    Returns
    -------
    Tensor, shape (n, I)

    Notes
    -----
    torch computes most elements of, say, a sigmoid in vectors, and those left over at the end of a
    loop one at a time, with another exponential function: the last bit can differ. Which elements
    are left over depends on the shape of the whole tensor, and on how it is split among threads. So
    where that may matter, the rows are put at the places that stock has them at.
    """
    function = module._apply_gate if module.has_gate else module.act_fn
    if experts == rows.experts or not _position_matters(module, y, rows):
        return function(y)  # type: ignore[no-any-return]
    places = rows.places(experts)
    whole = y.new_zeros((rows.n_rows, y.shape[1]))
    whole.index_copy_(0, places, y)
    gated: Tensor = function(whole)
    return gated.index_select(0, places)


def _position_matters(module: Any, y: Tensor, rows: Rows) -> bool:
    if y.device.type != "cpu":
        return False
    if rows.n_rows * y.shape[1] >= _GRAIN and torch.get_num_threads() > 1:
        return True
    # A gate of two halves is computed row by row, each with its own end of the loop. Others may go
    # through all rows as one, and then the ends of the rows are within vectors.
    two_halves = module.has_gate and getattr(module, "is_concatenated", True)
    return not two_halves and y.shape[1] % (2 * _VECTORS) != 0
