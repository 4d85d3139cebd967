"""Tiny random models of every supported family, and real checkpoint folders of them.

A freshly initialised model repeats one token whatever it is fed, and its experts hardly matter. The
weights here are drawn so that activations keep their scale through the layers: greedy output varies
and a wrong expert changes it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

_COMMON: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

# The first layer of these is dense, and every MoE layer has a shared expert.
_WITH_DENSE_LAYER = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}

_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_experts": 8,
        "moe_intermediate_size": 16,
        "head_dim": 16,
        "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 8, "head_dim": 12},
    "olmoe": {"num_experts": 8},
    "deepseek_v3": {
        **_WITH_DENSE_LAYER,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
    },
    "glm4_moe": {**_WITH_DENSE_LAYER, "head_dim": 16, "use_qk_norm": True},
    "gpt_oss": {
        "num_local_experts": 8,
        "head_dim": 16,
        "sliding_window": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
}

#: Variants that some tests want by name: the family and what is changed.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral-sliding": ("mixtral", {"sliding_window": 8}),
    "qwen3_moe-sliding": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}),
    "qwen3_moe-tied": ("qwen3_moe", {"tie_word_embeddings": True}),
    "qwen3_moe-dense-layer": ("qwen3_moe", {"mlp_only_layers": [1]}),
}

#: Every family, in the order of the registry.
MODEL_TYPES = tuple(_FAMILIES)


def layouts(model_type: str) -> tuple[str, ...]:
    """Return the layouts in which checkpoints of a family exist (gpt_oss: fused only)."""
    return ("fused",) if _family(model_type)[0] == "gpt_oss" else ("per-expert", "fused")


def tiny_config(model_type: str, **changes: Any) -> PretrainedConfig:
    """Return the configuration of a tiny model: 3 layers, 8 experts, top-2, 160 tokens.

    ``model_type`` is a family or a key of :data:`VARIANTS`.
    """
    family, variant = _family(model_type)
    return AutoConfig.for_model(family, **{**_COMMON, **_FAMILIES[family], **variant, **changes})


def tiny_model(
    model_type: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Return a random stock model in evaluation mode, as `from_pretrained` would have loaded it."""
    config = tiny_config(model_type, **changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _draw_weights(model, seed)
    if dtype != torch.float32:
        # Not model.to(dtype), which rounds the rotary frequencies and whatever the class keeps in
        # float32.
        model = type(model).from_pretrained(
            None,
            config=config,
            state_dict=model.state_dict(),
            dtype=dtype,
            trust_remote_code=False,
        )
    return model


def tiny_checkpoint(
    model_type: str,
    folder: Path,
    *,
    layout: str = "per-expert",
    shards: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """Write a checkpoint folder of :func:`tiny_model` and return it.

    Parameters
    ----------
    model_type : str
        A family or a key of :data:`VARIANTS`.
    folder : Path
        Made if it is not there.
    layout : {"per-expert", "fused"}
        ``"per-expert"`` has the names of the published checkpoints, which for gpt_oss are fused.
    shards : int
        With more than one, tensors are dealt out one by one, so that the experts of a layer, and
        the tensors of an expert, lie in different files.
    dtype, seed, **changes
        As for :func:`tiny_model`.
    """
    if layout not in ("per-expert", "fused"):
        raise ValueError(f"unknown layout {layout!r}")
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(model_type, dtype, seed, **changes)
    model.save_pretrained(folder, save_original_format=layout == "per-expert")
    if shards > 1:
        deal_out(folder, shards)
    return folder


def deal_out(folder: Path, shards: int) -> None:
    """Rewrite ``model.safetensors`` as ``shards`` files and their index, tensor by tensor."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    whole.unlink()
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    place = {key: names[i % shards] for i, key in enumerate(sorted(tensors))}
    for name in names:
        part = {key: tensor for key, tensor in tensors.items() if place[key] == name}
        save_file(part, folder / name, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def tiny_prompt(n: int = 7, seed: int = 0, vocab_size: int = 160) -> torch.Tensor:
    """Return random token ids of shape [1, n]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (1, n), generator=generator)


def _family(model_type: str) -> tuple[str, dict[str, Any]]:
    return VARIANTS.get(model_type, (model_type, {}))


def _draw_weights(model: PreTrainedModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: torch.Tensor, mean: float, std: float) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator))

    transposed = model.config.model_type == "gpt_oss"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            last = name.rsplit(".", 1)[-1]
            if "q_norm" in name or "k_norm" in name:
                normal(weight, 1.7, 0.2)  # sharper attention, so that the context matters
            elif "norm" in name:
                normal(weight, 1.0, 0.1)
            elif "embed_tokens" in name:
                # Small beside what the layers add, or a tied head would only repeat its input.
                normal(weight, 0.0, 0.2)
            elif "lm_head" in name:
                normal(weight, 0.0, 1.0)
            elif last.endswith("bias") or last == "sinks":
                normal(weight, 0.0, 0.3)
            else:
                fan_in = weight.shape[-2 if transposed and "experts" in name else -1]
                normal(weight, 0.0, 1.5 / math.sqrt(fan_in))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                normal(buffer, 0.0, 0.1)
