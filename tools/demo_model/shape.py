"""Sizes of the target model, and the tiny ones of the smoke run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SMOKE", "STANDARD", "Shape"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3-MoE; the names are those of Transformers' configuration."""

    vocab_size: int = 4096
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_experts: int = 64
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 32
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    sequence: int = 256  # length trained on


STANDARD = Shape()
SMOKE = Shape(
    vocab_size=512,
    hidden_size=32,
    num_hidden_layers=6,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    sequence=64,
)
