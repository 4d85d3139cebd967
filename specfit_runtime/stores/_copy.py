"""Copies within host memory that stay in the thread that asks for them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

# torch spreads a copy over all cores from 32,768 elements on. In a thread that fetches, that would
# start a second set of compute threads, which then compete with those of the forward pass.
_SERIAL = 32768 - 64


def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the memory of a contiguous 1-D host tensor as uint8, shared."""
    memory: NDArray[np.uint8] = tensor.detach().view(torch.uint8).numpy()
    return memory


def copy_serially(source: torch.Tensor, out: torch.Tensor) -> None:
    """Copy a 1-D host tensor into another of the same length, converting the dtype if need be.

    The interpreter's lock is released while it runs.
    """
    if source.dtype == out.dtype:
        np.copyto(as_bytes(out), as_bytes(source))
        return
    for at in range(0, len(source), _SERIAL):
        out[at : at + _SERIAL].copy_(source[at : at + _SERIAL])
