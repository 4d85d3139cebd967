"""Turn a training checkpoint into a model folder that stock Transformers loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .model import FastMoe
from .shape import Shape
from .train import load_checkpoint

if TYPE_CHECKING:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

__all__ = ["export_target", "restore", "round_to_export", "stock_config", "stock_model"]

CONTEXT = 1024  # positions that the configuration allows; training saw the shape's `sequence`


def stock_config(shape: Shape) -> Qwen3MoeConfig:
    """Return the Transformers configuration of a shape."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=4 * shape.hidden_size,  # of dense layers, of which there are none
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.num_experts_per_tok,
        moe_intermediate_size=shape.moe_intermediate_size,
        norm_topk_prob=True,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def stock_model(model: FastMoe) -> Qwen3MoeForCausalLM:
    """Return the stock model with this one's parameters, in float32."""
    from transformers import Qwen3MoeForCausalLM

    stock = Qwen3MoeForCausalLM(stock_config(model.shape))
    missing, unexpected = stock.load_state_dict(_stock_names(model), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"parameters do not match: {missing=} {unexpected=}")
    stock.tie_weights()
    return stock.eval()


def restore(checkpoint: Path, compute: torch.dtype = torch.bfloat16) -> FastMoe:
    """Return the model of a training checkpoint."""
    saved = load_checkpoint(checkpoint)
    model = FastMoe(Shape(**saved["shape"]), compute)
    model.load_state_dict(saved["model"])
    return model.eval()


def round_to_export(model: FastMoe) -> FastMoe:
    """Round the parameters to bfloat16 in place, as the export does; return the model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def export_target(checkpoint: Path, tokenizer: Path, folder: Path) -> None:
    """Write config, weights in bfloat16, tokenizer and generation config to `folder`."""
    from transformers import GenerationConfig

    folder.mkdir(parents=True, exist_ok=True)
    stock = stock_model(restore(checkpoint)).to(torch.bfloat16)
    stock.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_k=40, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    stock.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / file, folder / file)


def _stock_names(model: FastMoe) -> dict[str, Tensor]:
    shape = model.shape
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    named = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm}
    for number, layer in enumerate(model.layers):
        query, key, value = layer.qkv.split((queries, keys, keys))
        named |= {
            f"model.layers.{number}.{name}": tensor
            for name, tensor in {
                "input_layernorm.weight": layer.input_norm,
                "post_attention_layernorm.weight": layer.post_norm,
                "self_attn.q_proj.weight": query,
                "self_attn.k_proj.weight": key,
                "self_attn.v_proj.weight": value,
                "self_attn.q_norm.weight": layer.query_norm,
                "self_attn.k_norm.weight": layer.key_norm,
                "self_attn.o_proj.weight": layer.out,
                "mlp.gate.weight": layer.router,
                "mlp.experts.gate_up_proj": layer.gate_up,
                "mlp.experts.down_proj": layer.down,
            }.items()
        }
    return {name: tensor.detach() for name, tensor in named.items()}
