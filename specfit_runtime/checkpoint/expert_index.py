"""Where in the files of a checkpoint each expert's weights lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from .record import RecordLayout


@dataclass(frozen=True)
class ByteRange:
    """A contiguous run of a file that holds a contiguous run of a record.

    Attributes
    ----------
    file : int
        Index into :attr:`ExpertIndex.files`.
    offset, n_bytes : int
        In the file, in bytes.
    dtype : torch.dtype
        What is stored there, which may differ from what the record holds.
    at : int
        Element of the record where it begins.
    """

    file: int
    offset: int
    n_bytes: int
    dtype: torch.dtype
    at: int

    @property
    def n_elements(self) -> int:
        """Elements stored in the range."""
        return self.n_bytes // self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class ExpertIndex:
    """Where the experts of a model lie in its checkpoint, and how they are held in memory.

    Layers are counted over the MoE layers alone, from 0.

    Attributes
    ----------
    files : tuple of Path
        The files that hold experts.
    layouts : tuple of RecordLayout
        One per MoE layer.
    byte_ranges : tuple of tuple of tuple of ByteRange
        By layer and expert; see :meth:`ranges`.
    n_experts : int
        Per MoE layer.
    top_k : int
        Experts per token and MoE layer.
    stored_bytes : ndarray of int64, shape (L,)
        Bytes of one expert in the checkpoint.
    record_bytes : ndarray of int64, shape (L,)
        Bytes of one expert's record in memory.
    """

    files: tuple[Path, ...]
    layouts: tuple[RecordLayout, ...]
    byte_ranges: tuple[tuple[tuple[ByteRange, ...], ...], ...]
    n_experts: int
    top_k: int
    stored_bytes: NDArray[np.int64]
    record_bytes: NDArray[np.int64]

    @property
    def n_layers(self) -> int:
        """The number of MoE layers."""
        return len(self.layouts)

    def ranges(self, layer: int, expert: int) -> tuple[ByteRange, ...]:
        """Return where an expert lies: ranges that together fill its record, padding aside."""
        return self.byte_ranges[layer][expert]
