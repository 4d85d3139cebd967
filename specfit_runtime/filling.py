"""Loads everything but the experts into a model that has none of it yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .checkpoint import Checkpoint, StoredTensor
from .errors import CheckpointError

if TYPE_CHECKING:
    from .families import ExpertFamily

# Rotary frequencies are computed from the configuration; old checkpoints store them all the same.
_ALWAYS_IGNORED = (r"rotary_emb\.inv_freq$",)


@dataclass(frozen=True)
class Filling:
    """Which tensor of a checkpoint goes where in a skeleton.

    Attributes
    ----------
    keys : dict of str to str
        The module's name of a tensor by the checkpoint's.
    tied : frozenset of str
        Names that the checkpoint leaves out because another tensor serves for them too.
    """

    keys: dict[str, str]
    tied: frozenset[str]


def plan_filling(
    model: Any, checkpoint: Checkpoint, family: ExpertFamily, taken: frozenset[str]
) -> Filling:
    """Find everything but the experts in a checkpoint, without reading it.

    Parameters
    ----------
    model : PreTrainedModel
        From :func:`~specfit_runtime.skeleton.build_skeleton`.
    checkpoint : Checkpoint
    family : ExpertFamily
    taken : frozenset of str
        Keys of the checkpoint that hold the experts.

    Raises
    ------
    CheckpointError
        If tensors are missing, of another shape, not floating point or left over; the message names
        them.
    """
    wanted = _wanted(model, family)
    keys = {family.module_key(key): key for key in checkpoint.tensors if key not in taken}
    absent = {key for key in wanted if key not in keys}
    pairs = dict(model.all_tied_weights_keys).items()
    covered = {key for pair in pairs for key in pair if any(other in keys for other in pair)}
    missing = sorted(absent - covered)
    patterns = [
        *_ALWAYS_IGNORED,
        *family.ignored(model.config),
        *(model._keys_to_ignore_on_load_unexpected or ()),
    ]
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    left = sorted(
        stored for key, stored in keys.items() if key not in wanted and not ignored.search(key)
    )
    if missing or left:
        parts = []
        if missing:
            parts.append(f"lacks {_listed(missing)}")
        if left:
            parts.append(f"holds {_listed(left)}, for which the model has no place")
        raise CheckpointError(
            f"{checkpoint.folder} does not fit a {family.name} model of its configuration: "
            f"it {' and '.join(parts)}"
        )
    filling = {stored: key for key, stored in keys.items() if key in wanted}
    for stored, key in filling.items():
        _check_tensor(stored, checkpoint.tensors[stored], wanted[key])
    return Filling(filling, frozenset(absent))


def fill_skeleton(
    model: Any,
    checkpoint: Checkpoint,
    family: ExpertFamily,
    filling: Filling,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Load everything but the experts, as ``from_pretrained`` would.

    Parameters
    ----------
    model : PreTrainedModel
        From :func:`~specfit_runtime.skeleton.build_skeleton`; changed in place.
    checkpoint : Checkpoint
    family : ExpertFamily
    filling : Filling
        From :func:`plan_filling`.
    device : torch.device
    dtype : torch.dtype

    Raises
    ------
    CheckpointError
        If a file cannot be read.
    """
    wanted = _wanted(model, family)
    type_of = _dtype_plan(model, dtype)
    state: dict[str, Tensor] = {}
    for stored, tensor in checkpoint.read(filling.keys):
        key = filling.keys[stored]
        state[key] = tensor.to(device, type_of(key, wanted[key].dtype))
    # Assigned, not copied: the parameters are on meta.
    model.load_state_dict(state, strict=False, assign=True)
    missing = set(filling.tied)
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    _move_computed_buffers(model, device)
    tensors = (*model.named_parameters(), *model.named_buffers())
    empty = {name for name, tensor in tensors if tensor.is_meta and name in wanted} | missing
    if empty:
        raise CheckpointError(f"{checkpoint.folder} does not fill {_listed(sorted(empty))}")


def _wanted(model: Any, family: ExpertFamily) -> dict[str, Tensor]:
    """Return what a checkpoint must hold for a model beside its experts."""
    experts = {
        family.fused_key(layer, piece)
        for layer in family.moe_layers(model.config)
        for piece in family.pieces
    }
    return {key: tensor for key, tensor in model.state_dict().items() if key not in experts}


def _check_tensor(name: str, stored: StoredTensor, target: Tensor) -> None:
    if stored.shape != tuple(target.shape):
        raise CheckpointError(
            f"{name} in {stored.file} has shape {list(stored.shape)}, but the configuration asks "
            f"for {list(target.shape)}"
        )
    if target.is_floating_point() and stored.float_dtype is None:
        raise CheckpointError(
            f"{name} in {stored.file} is stored as {stored.dtype_name}; it must be BF16, F16, F32 "
            "or F64"
        )


def _dtype_plan(
    model: Any, dtype: torch.dtype
) -> Callable[[str, torch.dtype], torch.dtype]:
    """Return a function (key, dtype in the skeleton) -> dtype to load in.

    Some classes keep named modules in float32, and `from_pretrained` follows that.
    """
    kept = dict(model._get_dtype_plan(dtype))
    patterns = [(re.compile(name.replace("*", ".*")), kind) for name, kind in kept.items()]

    def plan(key: str, built: torch.dtype) -> torch.dtype:
        for pattern, kind in patterns:
            if pattern.search(key):
                return kind  # type: ignore[no-any-return]
        return built

    return plan


def _move_computed_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
