"""Reads the header of a safetensors file: which tensors it holds, and where."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specfit_opt.checks import Anything, Text, Whole, checked, shown
from specfit_opt.files.regular_file import open_regular
from specfit_opt.files.strict_json import parse_json
from specfit_opt.schema import ListOf, MapOf, Record

from ..errors import CheckpointError, InvalidInputError

# Longer headers are refused by the format's own library too.
_MAX_HEADER = 100_000_000
_MAX_FILE = 2**63 - 1

#: Dimensions of a tensor.
_MAX_DIMENSIONS = 64
_ENTRY = Record(
    {
        "dtype": Text(),
        "shape": ListOf(Whole(), most=_MAX_DIMENSIONS),
        "data_offsets": ListOf(Whole(), least=2, most=2),
    },
    others=True,
)

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes
    ----------
    file : Path
    offset, n_bytes : int
        In the file, in bytes.
    shape : tuple of int
    dtype_name : str
        As the header says, such as ``"BF16"``.
    """

    file: Path
    offset: int
    n_bytes: int
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type, or None for one that is not served, such as fp8."""
        return _DTYPES.get(self.dtype_name)

    @property
    def float_dtype(self) -> torch.dtype | None:
        """The element type if it is a floating-point one that is served, else None."""
        dtype = self.dtype
        return dtype if dtype is not None and dtype.is_floating_point else None


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by key.

    The format: eight bytes of little-endian length, that many bytes of JSON, then the tensors
    without gaps.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is no safetensors file, or is shorter or longer than its header
        says.
    """
    with open_regular(path, _MAX_FILE, CheckpointError) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= min(_MAX_HEADER, size - 8) else b""
    if size < 8 or length > min(_MAX_HEADER, size - 8):
        if size >= 8 and length > _MAX_HEADER:
            hint = ""
            if length.to_bytes(8, "little") == b"version ":
                hint = "; it looks like a Git LFS pointer, so fetch the file itself"
            raise CheckpointError(
                f"{path} is no safetensors file: its first eight bytes give a header of {length} "
                f"bytes{hint}"
            )
        raise CheckpointError(
            f"{path} is truncated: it has {size} bytes, which does not hold its header; fetch the "
            "file again"
        )
    where = f"{path} is no safetensors file: its header is malformed"
    entries = parse_json(text, where, MapOf(Anything()), error=CheckpointError)
    entries.pop("__metadata__", None)
    try:
        entries = checked(entries, MapOf(_ENTRY))
    except InvalidInputError as error:
        raise CheckpointError(f"{where}: {error}") from None
    tensors = {key: _entry(path, key, entry, 8 + length) for key, entry in entries.items()}
    _check_extent(path, tensors, 8 + length, size)
    return tensors


def _entry(path: Path, key: str, entry: Mapping[str, Any], start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    tensor = StoredTensor(path, start + begin, end - begin, tuple(entry["shape"]), entry["dtype"])
    dtype = tensor.dtype
    size = None if dtype is None else math.prod(tensor.shape) * dtype.itemsize
    if tensor.n_bytes < 0 or size not in (None, tensor.n_bytes):
        raise CheckpointError(
            f"{path} is no safetensors file: its header is malformed: {shown(key)} has "
            f"{tensor.n_bytes} bytes, its shape and type ask for {size}"
        )
    return tensor


def _check_extent(path: Path, tensors: dict[str, StoredTensor], start: int, size: int) -> None:
    at = start
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.n_bytes)):
        if tensor.offset != at:
            raise CheckpointError(
                f"{path} is no safetensors file: its header leaves gaps between tensors, or lets "
                "them overlap"
            )
        at += tensor.n_bytes
    if size < at:
        raise CheckpointError(
            f"{path} is truncated: it has {size} bytes, but its header says {at}; fetch the file "
            "again"
        )
    if size > at:
        raise CheckpointError(
            f"{path} has {size} bytes, but its header says {at}; fetch the file again"
        )
