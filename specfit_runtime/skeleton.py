"""Builds the stock model without its experts' weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ._ambient import on_the_cpu
from .errors import CheckpointError, InvalidInputError
from .exclusive import loading

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .families import ExpertFamily

# Of these a tree of draft tokens can be verified: they take any mask.
_ATTENTION = ("eager", "sdpa")


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
        with loading(), on_the_cpu(), _parameters_on_meta():
            model = make(
                config, dtype=dtype, experts_implementation=experts_implementation, **chosen
            )
    except (ValueError, ImportError) as error:
        raise InvalidInputError(
            f"the stock {config.model_type} model cannot be made so: {error}"
        ) from error
    actual = model.config._attn_implementation
    if actual not in _ATTENTION:
        raise InvalidInputError(
            f"the configuration asks for attention {actual!r}, which takes no tree mask; pass "
            'attn_implementation="eager" or "sdpa"'
        )
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and not bool(buffer.isfinite().all()):
            raise CheckpointError(f"the configuration's rotary positions give no finite {name}")
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
