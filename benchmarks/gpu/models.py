"""Random models: one small checkpoint per family, and a large one that is in no file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from specfit_runtime.alignment import align_weights
from specfit_runtime.checkpoint import ExpertIndex, RecordLayout
from specfit_runtime.experts import EXPERTS_IMPLEMENTATION, register
from specfit_runtime.families import ExpertFamily, family_for
from specfit_runtime.skeleton import build_skeleton, experts_modules

#: Widths: of hidden states, of an expert, layers, experts per layer, experts per token.
_SMALL = (64, 32, 3, 8, 2)
_LARGER = (256, 128, 4, 32, 4)
VOCABULARY = 512


def family_config(model_type: str, small: bool) -> Any:
    """Return the configuration of a small model of a family.

    Raises
    ------
    KeyError
        If there is none for it here: a new family needs an entry.
    """
    hidden, inner, n_layers, n_experts, top_k = _SMALL if small else _LARGER
    head_dim = hidden // 4
    routed = {
        "n_routed_experts": n_experts,
        "n_shared_experts": 1,
        "moe_intermediate_size": inner,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": True,
    }
    own: dict[str, dict[str, Any]] = {
        "qwen3_moe": {
            "num_experts": n_experts,
            "moe_intermediate_size": inner,
            "head_dim": head_dim,
            "norm_topk_prob": True,
        },
        "mixtral": {"num_local_experts": n_experts},
        "olmoe": {"num_experts": n_experts},
        "deepseek_v3": {
            **routed,
            "num_key_value_heads": 4,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
        },
        "glm4_moe": {**routed, "head_dim": head_dim, "use_qk_norm": True},
        "gpt_oss": {"num_local_experts": n_experts, "head_dim": head_dim, "sliding_window": 16},
    }
    return AutoConfig.for_model(
        model_type,
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_experts_per_tok=top_k,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **{"num_key_value_heads": 2, **own[model_type]},
    )


def write_family(model_type: str, folder: Path, small: bool) -> Path:
    """Write a checkpoint of random weights in float32, and return its folder."""
    config = family_config(model_type, small)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw(name, parameter, generator, transposed=model_type == "gpt_oss")
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.1, generator=generator)
    model.save_pretrained(folder)
    return folder


def stock_model(folder: Path, device: torch.device, dtype: torch.dtype, **options: Any) -> Any:
    """Return the stock model of a folder, its weights aligned as those of an offloaded one are."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=False, **options
    )
    return align_weights(model).to(device).eval()


def draw(name: str, out: Tensor, generator: torch.Generator, *, transposed: bool = False) -> None:
    """Fill a parameter so that states keep their size and the text depends on all of them.

    As models are initialised by default, a random one writes one token again and again.
    """
    if "norm" in name:
        out.normal_(1.0, 0.1, generator=generator)
    elif "embed_tokens" in name or name.endswith(("bias", "sinks")):
        out.normal_(0.0, 0.3, generator=generator)
    else:
        fan_in = out.shape[-2 if transposed and "experts" in name else -1]
        out.normal_(0.0, 1.5 / math.sqrt(fan_in), generator=generator)


def large_config(small: bool) -> Any:
    """Return the configuration of Qwen3-30B-A3B, or of a small model like it."""
    shape = {
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    if small:
        shape = {
            "num_hidden_layers": 3,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "hidden_size": 64,
            "moe_intermediate_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": VOCABULARY,
        }
    return AutoConfig.for_model(
        "qwen3_moe",
        **shape,
        intermediate_size=3 * shape["moe_intermediate_size"],
        norm_topk_prob=True,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def index_without_files(
    config: Any, dtype: torch.dtype, n_layers: int | None = None
) -> ExpertIndex:
    """Return the index of experts that are in memory alone.

    ``n_layers`` is as many as the model has unless it is given.
    """
    family = family_for(config)
    shapes = family.shapes(config)
    pieces = [(p.parameter, s) for p, s in zip(family.pieces, shapes, strict=True)]
    layout = RecordLayout.of(pieces, dtype)
    n = len(family.moe_layers(config)) if n_layers is None else n_layers
    n_experts = family.n_experts(config)
    size = np.full(n, layout.n_bytes, dtype=np.int64)
    return ExpertIndex(
        files=(),
        layouts=(layout,) * n,
        byte_ranges=(((),) * n_experts,) * n,
        n_experts=n_experts,
        top_k=family.top_k(config),
        stored_bytes=size,
        record_bytes=size,
    )


def fill_slabs(index: ExpertIndex, slabs: list[Tensor], device: torch.device) -> None:
    """Draw the experts of each layer on the device, others in each, and copy them."""
    held: Tensor | None = None
    for layer, (slab, layout) in enumerate(zip(slabs, index.layouts, strict=True)):
        if held is None or held.shape != slab.shape:
            held = torch.zeros(slab.shape, dtype=slab.dtype, device=device)
        generator = torch.Generator(device).manual_seed(1 + layer)
        for name, view in layout.views(held).items():
            draw(f"experts.{name}", view, generator)
        slab.copy_(held)


def skeleton(config: Any, dtype: torch.dtype, device: torch.device) -> tuple[Any, ExpertFamily]:
    """Return the stock model of a configuration with all but its experts, drawn on the device."""
    register()
    model = build_skeleton(
        config, dtype, attn_implementation=None, experts_implementation=EXPERTS_IMPLEMENTATION
    )
    family = family_for(config)
    modules = experts_modules(model, family)
    experts = {id(parameter) for module in modules for parameter in module.parameters()}
    generator = torch.Generator(device).manual_seed(0)
    state = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in experts:
            state[name] = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            draw(name, state[name], generator)
    # Assigned, not copied: the parameters are on meta.
    model.load_state_dict(state, strict=False, assign=True)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    return model.requires_grad_(False).eval(), family


def random_prompt(n: int, vocabulary: int, device: torch.device, seed: int = 0) -> Tensor:
    """Return token ids of shape [1, n]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (1, n), generator=generator).to(device)
