"""Builds the stock model without its experts' weights."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from .checkpoint import Checkpoint
from .errors import CheckpointError, InvalidInputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .families import ExpertFamily

# Of these a tree of draft tokens can be verified: they take any mask.
_ATTENTION = ("eager", "sdpa")

# Rotary frequencies are computed from the configuration; old checkpoints store them all the same.
_ALWAYS_IGNORED = (r"rotary_emb\.inv_freq$",)


def build_skeleton(
    config: PretrainedConfig,
    dtype: torch.dtype,
    *,
    attn_implementation: str | None,
    experts_implementation: str,
) -> Any:
    """Return the stock model of a configuration with every parameter on the meta device.

    Buffers are real: they are computed when the model is made, rotary frequencies in float32
    whatever ``dtype`` is.

    Raises
    ------
    InvalidInputError
        If the model does not have the attention implementation, or that one takes no tree mask.
    """
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    if attn_implementation not in (None, *_ATTENTION):
        raise InvalidInputError(
            f"attn_implementation {attn_implementation!r} is not served: a draft tree needs a mask "
            f"of any shape, which only {' and '.join(_ATTENTION)} take"
        )
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        with _parameters_on_meta():
            model = make(
                config, dtype=dtype, experts_implementation=experts_implementation, **chosen
            )
    except ValueError as error:
        raise InvalidInputError(
            f"the stock {config.model_type} model cannot be made so: {error}"
        ) from error
    actual = model.config._attn_implementation
    if actual not in _ATTENTION:
        raise InvalidInputError(
            f"the configuration asks for attention {actual!r}, which takes no tree mask; pass "
            'attn_implementation="eager" or "sdpa"'
        )
    return model


def experts_modules(model: Any, family: ExpertFamily) -> tuple[nn.Module, ...]:
    """Return the experts modules of a model, one per MoE layer.

    Raises
    ------
    InvalidInputError
        If they are not as the family says, which would be another version of Transformers.
    """
    layers = family.moe_layers(model.config)
    expected = {
        piece.parameter: (family.n_experts(model.config), *shape)
        for piece, shape in zip(family.pieces, family.shapes(model.config), strict=True)
    }
    modules = []
    for layer in layers:
        path = family.experts_path(layer)
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise InvalidInputError(_other_version(path, "is not there")) from None
        found = {name: tuple(p.shape) for name, p in module.named_parameters()}
        if found != expected:
            raise InvalidInputError(_other_version(path, f"has {found}, expected was {expected}"))
        modules.append(module)
    return tuple(modules)


def fill_skeleton(
    model: Any,
    checkpoint: Checkpoint,
    family: ExpertFamily,
    *,
    taken: frozenset[str],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Load everything but the experts, as ``from_pretrained`` would.

    Parameters
    ----------
    model : PreTrainedModel
        From :func:`build_skeleton`; changed in place.
    checkpoint : Checkpoint
    family : ExpertFamily
    taken : frozenset of str
        Keys of the checkpoint that hold the experts.
    device : torch.device
    dtype : torch.dtype

    Raises
    ------
    CheckpointError
        If tensors are missing, of another shape, not floating point or left over; the message names
        them.
    """
    expert_keys = {
        f"{family.experts_path(layer)}.{piece.parameter}"
        for layer in family.moe_layers(model.config)
        for piece in family.pieces
    }
    wanted = {k: v for k, v in model.state_dict().items() if k not in expert_keys}
    keys = {family.module_key(key): key for key in checkpoint.tensors if key not in taken}
    missing = _check_keys(model, checkpoint, family, wanted, keys)
    plan = _dtype_plan(model, dtype)
    state: dict[str, Tensor] = {}
    by_stored = {stored: key for key, stored in keys.items() if key in wanted}
    _check_tensors(checkpoint, by_stored, wanted)
    for stored, tensor in checkpoint.read(by_stored):
        key = by_stored[stored]
        target = wanted[key]
        state[key] = tensor.to(device, plan(key, target.dtype))
    # Assigned, not copied: the parameters are on meta.
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    _move_computed_buffers(model, device)
    on_meta = [
        name
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.is_meta and name not in expert_keys
    ]
    if missing or on_meta:
        raise CheckpointError(
            f"{checkpoint.folder} does not fill {_listed(sorted({*missing, *on_meta}))}"
        )


def _check_keys(
    model: Any,
    checkpoint: Checkpoint,
    family: ExpertFamily,
    wanted: dict[str, Tensor],
    keys: dict[str, str],
) -> set[str]:
    """Return the keys that will come from tied weights; refuse others that are missing or left."""
    absent = {key for key in wanted if key not in keys}
    tied = dict(model.all_tied_weights_keys)
    covered = {
        key for pair in tied.items() for key in pair if any(other in keys for other in pair)
    }
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
            f"{checkpoint.folder} does not fit a {family.model_type} model of its configuration: "
            f"it {' and '.join(parts)}"
        )
    return absent


def _check_tensors(
    checkpoint: Checkpoint, by_stored: dict[str, str], wanted: dict[str, Tensor]
) -> None:
    for stored, key in by_stored.items():
        found, target = checkpoint.tensors[stored], wanted[key]
        if found.shape != tuple(target.shape):
            raise CheckpointError(
                f"{stored} in {found.file} has shape {list(found.shape)}, but the configuration "
                f"asks for {list(target.shape)}"
            )
        if target.is_floating_point() and found.float_dtype is None:
            raise CheckpointError(
                f"{stored} in {found.file} is stored as {found.dtype_name}; it must be BF16, F16, "
                "F32 or F64"
            )


def _dtype_plan(model: Any, dtype: torch.dtype) -> Any:
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


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Put the parameters of modules that this thread makes on the meta device.

    Not ``torch.device("meta")``: that would catch the buffers too, and what is computed into them
    could not be had back. The memory that a constructor asks for is never touched, so it costs
    nothing.
    """
    thread = threading.get_ident()

    def to_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != thread or parameter is None:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    # What the hook returns takes the parameter's place; the stub says that it returns nothing.
    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()


def _other_version(path: str, what: str) -> str:
    from transformers import __version__

    return (
        f"the experts module {path} {what}; the family does not describe the model of Transformers "
        f"{__version__}, please report it"
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
