"""How one expert's weights lie in fast memory: a record, one piece after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Bytes at whose multiples pieces and records start. Grouped matrix products want 16, vector loads
#: and cache lines 64.
ALIGNMENT = 64


@dataclass(frozen=True)
class PieceSlot:
    """Where one piece lies in a record.

    Attributes
    ----------
    parameter : str
        Name of the parameter in the stock experts module.
    shape : tuple of int
        Of one expert's part of it.
    offset : int
        First element, counted from the start of the record.
    """

    parameter: str
    shape: tuple[int, ...]
    offset: int

    @property
    def n_elements(self) -> int:
        """Elements of the piece."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class RecordLayout:
    """The record of an expert; the same for all experts of a layer.

    Attributes
    ----------
    pieces : tuple of PieceSlot
        In ascending order; each starts at a multiple of 64 bytes.
    n_elements : int
        Elements of the record, padding included; its bytes are a multiple of 64.
    dtype : torch.dtype
        What the experts are computed in.
    """

    pieces: tuple[PieceSlot, ...]
    n_elements: int
    dtype: torch.dtype

    @classmethod
    def of(
        cls, pieces: Sequence[tuple[str, tuple[int, ...]]], dtype: torch.dtype
    ) -> RecordLayout:
        """Lay out pieces, given as (parameter, shape), one after the other."""
        step = ALIGNMENT // dtype.itemsize
        slots, at = [], 0
        for parameter, shape in pieces:
            slots.append(PieceSlot(parameter, tuple(shape), at))
            at += -(-math.prod(shape) // step) * step
        return cls(tuple(slots), at, dtype)

    @property
    def n_bytes(self) -> int:
        """Bytes of a record."""
        return self.n_elements * self.dtype.itemsize

    def views(self, slab: Tensor) -> dict[str, Tensor]:
        """Return the pieces of the records in a slab, without copying.

        Parameters
        ----------
        slab : Tensor, shape (S, n_elements)
            One record a row.

        Returns
        -------
        dict of str to Tensor
            By parameter, of shape (S, *shape); the first stride is that of the slab.
        """
        n = slab.shape[0]
        return {
            piece.parameter: slab[:, piece.offset : piece.offset + piece.n_elements].view(
                n, *piece.shape
            )
            for piece in self.pieces
        }
