"""Experts that can be computed with now."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ReadyBatch:
    """Experts whose weights are in fast memory until the next batch is asked for.

    Attributes
    ----------
    slab : Tensor, shape (S, n_elements)
        Records, one a row; rows that ``slots`` does not name may be being written to.
    experts : tuple of int
    slots : tuple of int
        ``slab[slots[i]]`` is the record of ``experts[i]``.
    """

    slab: Tensor
    experts: tuple[int, ...]
    slots: tuple[int, ...]
