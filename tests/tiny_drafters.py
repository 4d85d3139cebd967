"""Tiny random drafters: EAGLE-3 heads in both layouts, and a dense language model.

The heads are random, so what they draft is hardly ever accepted; tests of equality and of the
protocol need no more.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig

#: The layouts that `tiny_eagle3` writes.
STYLES = ("specforge", "speculators")


def tiny_eagle3(
    folder: Path,
    target: PretrainedConfig,
    *,
    style: str = "specforge",
    head_dim: int = 20,
    seed: int = 0,
    hidden_size: int | None = None,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    draft_vocab_size: int | None = -1,
    feature_layers: tuple[int, ...] | None = (0, 1, 2),
    options: dict[str, Any] | None = None,
    layer_options: dict[str, Any] | None = None,
    extra: dict[str, tuple[int, ...]] | None = None,
    drop: tuple[str, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a folder with a random head for a target and return it.

    Parameters
    ----------
    style : {"specforge", "speculators"}
        Names of the tensors and layout of ``config.json``.
    head_dim : int
        By default not hidden size / heads.
    hidden_size : int, optional
        Of the head; the target's by default. Another one comes with embeddings of its own.
    draft_vocab_size : int, optional
        -1: three quarters of the target's; None: all of it, without d2t and t2d.
    feature_layers : tuple of int, optional
        Indices into ``hidden_states``, written as each layout counts; None: not written.
    options, layer_options : dict, optional
        Further entries of ``config.json``: of the drafter, and of its decoder layer.
    extra : dict, optional
        Further tensors by the names of SpecForge, with their shapes.
    drop : tuple of str
        Tensors to leave out.
    """
    generator = torch.Generator().manual_seed(seed)
    vocab, wide = target.vocab_size, target.hidden_size
    hidden = hidden_size or wide
    n_states = 3 if feature_layers is None else len(feature_layers)
    if draft_vocab_size == -1:
        draft_vocab_size = vocab * 3 // 4
    draft = vocab if draft_vocab_size is None else draft_vocab_size
    mlp = 2 * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, n_states * wide),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (n_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (n_kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (n_kv_heads * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, n_heads * head_dim),
        "midlayer.mlp.gate_proj.weight": (mlp, hidden),
        "midlayer.mlp.up_proj.weight": (mlp, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, mlp),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden),
        **(extra or {}),
    }
    if hidden != wide:
        shapes["embed_tokens.weight"] = (vocab, hidden)
    tensors = {name: _draw(name, shape, generator) for name, shape in shapes.items()}
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    if draft_vocab_size is not None:
        kept = torch.randperm(vocab, generator=generator)[:draft].sort().values
        tensors["d2t"] = kept - torch.arange(draft)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool)
        tensors["t2d"][kept] = True
    for name in drop:
        del tensors[name]
    layer: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": 1,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": vocab,
        **(layer_options or {}),
    }
    whole: dict[str, Any] = {"draft_vocab_size": draft_vocab_size, "target_hidden_size": wide}
    if style == "specforge":
        whole = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **whole}
        if feature_layers is not None:
            ids = [layer - 1 for layer in feature_layers]
            whole["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    elif style == "speculators":
        tensors = {
            name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()
        }
        whole = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "norm_before_residual": False,
            "transformer_layer_config": {"model_type": "llama", **layer},
            **whole,
        }
        if feature_layers is not None:
            whole["eagle_aux_hidden_state_layer_ids"] = list(feature_layers)
    else:
        raise ValueError(f"unknown style {style!r}")
    whole.update(options or {})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(whole, indent=1))
    save_file(tensors, folder / "model.safetensors")
    return folder


def tiny_lm(folder: Path, vocab_size: int, *, seed: int = 0, **changes: Any) -> Path:
    """Write a folder with a random dense language model of two layers and return it."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "bos_token_id": None,
            "eos_token_id": None,
            **changes,
        },
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_draw(name, tuple(weight.shape), generator))
    model.save_pretrained(folder)
    return folder


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return weights that keep activations at their scale, and outputs varied."""
    drawn = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1.0 + 0.1 * drawn
    if "embed" in name:
        return drawn
    if name.endswith("bias"):
        return 0.3 * drawn
    return 1.5 * drawn / math.sqrt(shape[-1])
