"""Qwen3-MoE: experts in every layer that is not named as dense."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ._common import GATED_PIECES, shapes_by_moe_intermediate
from .expert_family import ExpertFamily

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def moe_layers(config: PretrainedConfig) -> tuple[int, ...]:
    """Return every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    return tuple(
        i for i in range(config.num_hidden_layers) if i not in dense and (i + 1) % step == 0
    )


FAMILY = ExpertFamily(
    name="qwen3_moe",
    pieces=GATED_PIECES,
    shapes=shapes_by_moe_intermediate,
    moe_layers=moe_layers,
    n_experts=attrgetter("num_experts"),
    top_k=attrgetter("num_experts_per_tok"),
)
