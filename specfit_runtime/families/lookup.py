"""Finds the family of a model, or says why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, InvalidInputError
from .expert_family import ExpertFamily

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Layers whose state is a recurrence over the tokens, as `config.layer_types` calls them.
_RECURRENT_LAYERS = ("linear", "mamba", "recurrent", "conv", "delta", "ssm")

# Model types with such layers whose configurations do not all list layer types.
_RECURRENT_TYPES = {
    "bailing_hybrid",
    "bamba",
    "dory",
    "falcon_h1",
    "glm5_next",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2_moe",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen4_exp",
    "zamba",
    "zamba2",
}

# Names under which configurations give the number of experts.
_COUNTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)

# What to load instead of a quantised checkpoint, by method.
_INSTEAD = {
    "mxfp4": (
        "load a bf16 version of the model; gpt-oss can be converted once by loading it with "
        "quantization_config=Mxfp4Config(dequantize=True) and save_pretrained"
    ),
    "fp8": "load a version of the model that was converted to bf16",
}


def family_of(
    families: Mapping[str, ExpertFamily], config: PretrainedConfig
) -> ExpertFamily:
    """Return the family in ``families`` that serves a model; see :func:`family_for`."""
    model_type = getattr(config, "model_type", None)
    family = families.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise InvalidInputError(_refusal(families, config, model_type))
    _refuse_quantised(config)
    if not family.moe_layers(config):
        raise InvalidInputError(
            f"this {model_type} configuration has no layer with experts, so there is nothing to "
            "offload; load it with AutoModelForCausalLM.from_pretrained"
        )
    return family


def _refusal(
    families: Mapping[str, ExpertFamily], config: PretrainedConfig, model_type: Any
) -> str:
    served = f"the families are {', '.join(families)}"
    text = getattr(config, "text_config", None) or config
    recurrent = [
        kind
        for kind in getattr(text, "layer_types", None) or ()
        if any(word in kind for word in _RECURRENT_LAYERS)
    ]
    # A composite configuration and its text part may be named alike but for a suffix.
    bare = str(getattr(text, "model_type", model_type)).removesuffix("_text")
    if recurrent or bare in _RECURRENT_TYPES:
        return (
            f"model type {model_type!r} has layers with a recurrent state (linear attention, state "
            "space or convolution): the state runs through the tokens as one chain, so the "
            f"branches of a draft tree cannot be verified in one pass; {served}"
        )
    if _most_experts(config.to_dict()) > 1:
        return f"model type {model_type!r} has experts, but not in a way known here; {served}"
    return (
        f"model type {model_type!r} has no experts to offload; load it with "
        f"AutoModelForCausalLM.from_pretrained; {served}"
    )


def _most_experts(fields: Mapping[str, Any]) -> int:
    """Return the largest number of experts in a configuration or a part of it, or 0."""
    most = 0
    for name, value in fields.items():
        if isinstance(value, Mapping):
            most = max(most, _most_experts(value))
        elif name in _COUNTS:
            # Some configurations give one number per layer.
            counts = value if isinstance(value, (list, tuple)) else [value]
            most = max([most, *(count for count in counts if isinstance(count, int))])
    return most


def _refuse_quantised(config: PretrainedConfig) -> None:
    quantised = getattr(config, "quantization_config", None)
    if not quantised:
        return
    get = quantised.get if isinstance(quantised, Mapping) else vars(quantised).get
    method = get("quant_method", "unknown")
    method = str(getattr(method, "value", method))
    instead = _INSTEAD.get(
        method, "load a version of the model in bf16, fp16 or fp32 without quantization_config"
    )
    raise CheckpointError(
        f"the checkpoint is quantised (quant_method {method!r}), which the experts' stores cannot "
        f"serve; {instead}"
    )
