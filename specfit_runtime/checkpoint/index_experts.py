"""Builds the index of a checkpoint's experts, whichever way it stores them."""

from __future__ import annotations

import math
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..errors import CheckpointError
from .checkpoint import Checkpoint
from .expert_index import ByteRange, ExpertIndex
from .header import StoredTensor
from .record import PieceSlot, RecordLayout

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from ..families import ExpertFamily, ExpertPiece


def index_experts(
    checkpoint: Checkpoint,
    family: ExpertFamily,
    config: PretrainedConfig,
    dtype: torch.dtype,
) -> tuple[ExpertIndex, frozenset[str]]:
    """Find every expert of a model in its checkpoint.

    A piece may be stored for all experts of a layer together, or for each by itself; layers and
    pieces may differ, and so may the files that hold them.

    Parameters
    ----------
    checkpoint : Checkpoint
    family : ExpertFamily
    config : PretrainedConfig
    dtype : torch.dtype
        What the experts will be computed in.

    Returns
    -------
    index : ExpertIndex
    taken : frozenset of str
        The keys that hold the experts; every other key is for the rest of the model.

    Raises
    ------
    CheckpointError
        If an expert's tensor is missing, has another shape than the configuration says or an
        element type that cannot be converted, or a tensor of an expert is left over.

    Notes
    -----
    Time and memory are linear in the number of tensors.
    """
    return _Builder(checkpoint, family, config, dtype).build()


class _Builder:
    def __init__(
        self,
        checkpoint: Checkpoint,
        family: ExpertFamily,
        config: PretrainedConfig,
        dtype: torch.dtype,
    ) -> None:
        self.checkpoint, self.family = checkpoint, family
        self.n_experts, self.top_k = family.n_experts(config), family.top_k(config)
        self.moe_layers = family.moe_layers(config)
        shapes = family.shapes(config)
        self.layout = RecordLayout.of(
            [(p.parameter, shape) for p, shape in zip(family.pieces, shapes, strict=True)], dtype
        )
        self.keys = _renamed(checkpoint, family)
        self.taken: set[str] = set()
        self.files: dict[Path, int] = {}

    def build(self) -> tuple[ExpertIndex, frozenset[str]]:
        layers = [self._layer(layer) for layer in self.moe_layers]
        self._refuse_leftovers()
        n_layers = len(layers)
        stored = [self._stored_bytes(n, ranges) for n, ranges in enumerate(layers)]
        stored_bytes = np.array(stored, dtype=np.int64)
        record_bytes = np.full(n_layers, self.layout.n_bytes, dtype=np.int64)
        stored_bytes.flags.writeable = record_bytes.flags.writeable = False
        index = ExpertIndex(
            files=tuple(self.files),
            layouts=(self.layout,) * n_layers,
            byte_ranges=tuple(layers),
            n_experts=self.n_experts,
            top_k=self.top_k,
            stored_bytes=stored_bytes,
            record_bytes=record_bytes,
        )
        return index, frozenset(self.taken)

    def _layer(self, layer: int) -> tuple[tuple[ByteRange, ...], ...]:
        """Return the ranges of every expert of a decoder layer."""
        by_piece = [
            self._piece(layer, piece, slot)
            for piece, slot in zip(self.family.pieces, self.layout.pieces, strict=True)
        ]
        return tuple(
            tuple(r for ranges in by_piece for r in ranges[expert])
            for expert in range(self.n_experts)
        )

    def _piece(
        self, layer: int, piece: ExpertPiece, slot: PieceSlot
    ) -> list[tuple[ByteRange, ...]]:
        """Return the ranges of a piece, by expert."""
        fused = self.family.fused_key(layer, piece)
        parts = [self.family.part_keys(layer, e, piece) for e in range(self.n_experts)]
        absent = [key for keys in parts for key in keys if key not in self.keys]
        n_parts = self.n_experts * len(piece.parts)
        if fused in self.keys:
            if len(absent) < n_parts:
                raise CheckpointError(
                    f"{self.checkpoint.folder} stores experts of layer {layer} twice: all together "
                    f"as {self._stored_key(fused)}, and one by one"
                )
            return self._fused(fused, slot)
        if not n_parts or len(absent) == n_parts:
            raise CheckpointError(self._nothing_matched(layer, fused, parts[0]))
        if absent:
            raise CheckpointError(
                f"{self.checkpoint.folder} lacks {absent[0]}"
                f"{f' and {len(absent) - 1} more tensor(s) of' if len(absent) > 1 else ', of'} the "
                f"{self.n_experts} experts of layer {layer}; fetch the checkpoint again"
            )
        return [self._one_by_one(keys, slot) for keys in parts]

    def _fused(self, key: str, slot: PieceSlot) -> list[tuple[ByteRange, ...]]:
        stored = self._take(key, (self.n_experts, *slot.shape))
        size = stored.n_bytes // self.n_experts
        return [
            (self._range(stored, stored.offset + expert * size, size, slot.offset),)
            for expert in range(self.n_experts)
        ]

    def _one_by_one(self, keys: tuple[str, ...], slot: PieceSlot) -> tuple[ByteRange, ...]:
        shape = (slot.shape[0] // len(keys), *slot.shape[1:])
        ranges = []
        for n, key in enumerate(keys):
            stored = self._take(key, shape)
            at = slot.offset + n * math.prod(shape)
            ranges.append(self._range(stored, stored.offset, stored.n_bytes, at))
        return tuple(ranges)

    def _take(self, key: str, shape: tuple[int, ...]) -> StoredTensor:
        stored_key = self._stored_key(key)
        stored = self.checkpoint.tensors[stored_key]
        if stored.float_dtype is None:
            raise CheckpointError(
                f"{stored_key} in {stored.file} is stored as {stored.dtype_name}; experts must be "
                "stored as BF16, F16, F32 or F64"
            )
        if stored.shape != shape:
            raise CheckpointError(
                f"{stored_key} in {stored.file} has shape {list(stored.shape)}, but the "
                f"configuration asks for {list(shape)}"
            )
        self.taken.add(stored_key)
        return stored

    def _range(self, stored: StoredTensor, offset: int, n_bytes: int, at: int) -> ByteRange:
        dtype = stored.float_dtype
        assert dtype is not None  # _take has refused others
        file = self.files.setdefault(stored.file, len(self.files))
        return ByteRange(file, offset, n_bytes, dtype, at)

    def _stored_key(self, key: str) -> str:
        return self.keys[key]

    def _stored_bytes(self, n: int, layer: tuple[tuple[ByteRange, ...], ...]) -> int:
        sizes = [sum(r.n_bytes for r in ranges) for ranges in layer]
        if len(set(sizes)) > 1:
            other = next(e for e, size in enumerate(sizes) if size != sizes[0])
            raise CheckpointError(
                f"{self.checkpoint.folder} stores the experts of layer {self.moe_layers[n]} in "
                f"different element types: expert 0 has {sizes[0]} bytes, expert {other} has "
                f"{sizes[other]}; convert the checkpoint to one type"
            )
        return sizes[0]

    def _nothing_matched(self, layer: int, fused: str, parts: tuple[str, ...]) -> str:
        looked = [*parts[:1], fused]
        prefix = f"model.layers.{layer}."
        like = [k for k in self.keys if k.startswith(prefix) and "expert" in k]
        like = like or [k for k in self.keys if k.startswith(prefix)] or list(self.keys)
        like = get_close_matches(looked[0], like, n=3, cutoff=0.0)
        found = ", ".join(self._stored_key(k) for k in like) or "no tensors"
        return (
            f"no expert of layer {layer} is in {self.checkpoint.folder}: looked for "
            f"{' or '.join(looked)}; the "
            f"checkpoint has {found}. Its names do not match the family {self.family.name}, "
            "so nothing of it would be offloaded"
        )

    def _refuse_leftovers(self) -> None:
        prefixes = tuple(f"{self.family.experts_path(layer)}." for layer in self.moe_layers)
        left = [
            stored
            for key, stored in self.keys.items()
            if key.startswith(prefixes) and stored not in self.taken
        ]
        if left:
            raise CheckpointError(
                f"{self.checkpoint.folder} holds {left[0]} ({len(left)} such tensor(s)), which "
                f"belongs to no expert of the configuration: {len(self.moe_layers)} layers of "
                f"{self.n_experts} experts; quantised checkpoints and other families are not served"
            )


def _renamed(checkpoint: Checkpoint, family: ExpertFamily) -> dict[str, str]:
    """Return the checkpoint's key of every tensor by the module's."""
    keys: dict[str, str] = {}
    for stored in checkpoint.tensors:
        key = family.module_key(stored)
        if key in keys:
            raise CheckpointError(
                f"{checkpoint.folder} holds both {keys[key]} and {stored}, which are the same "
                "tensor of the model"
            )
        keys[key] = stored
    return keys
