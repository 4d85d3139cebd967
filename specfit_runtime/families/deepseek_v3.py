"""DeepSeek-V3: dense layers first, then experts beside a shared expert, which stays resident."""

from __future__ import annotations

from operator import attrgetter

from ._common import (
    GATED_PIECES,
    layers_after_dense,
    prediction_layers,
    shapes_by_moe_intermediate,
)
from .expert_family import ExpertFamily

FAMILY = ExpertFamily(
    name="deepseek_v3",
    pieces=GATED_PIECES,
    shapes=shapes_by_moe_intermediate,
    moe_layers=layers_after_dense,
    n_experts=attrgetter("n_routed_experts"),
    top_k=attrgetter("num_experts_per_tok"),
    groups=attrgetter("n_group", "topk_group"),
    ignored=prediction_layers,
)
