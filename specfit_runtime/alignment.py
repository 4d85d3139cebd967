"""Copies weights to where matrix products like them, as files hold them anywhere."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from .checkpoint.record import ALIGNMENT

Module = TypeVar("Module", bound=nn.Module)


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor at a multiple of 64 bytes: itself, or a copy.

    A safetensors file lies in memory as it is, and its tensors at multiples of 8 bytes only. There
    a product of the same numbers can have other last bits, since kernels begin and end their loops
    elsewhere, and is slower.
    """
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def align_weights(module: Module) -> Module:
    """Align the parameters and buffers of a module in place, and return it.

    Tensors that several modules share stay shared; those on a GPU or on meta are aligned already.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = aligned(tensor.data)
    return module
