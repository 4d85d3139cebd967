"""OLMoE: experts in every layer."""

from __future__ import annotations

from operator import attrgetter

from ._common import GATED_PIECES, all_layers, shapes_by_intermediate
from .expert_family import ExpertFamily

FAMILY = ExpertFamily(
    name="olmoe",
    pieces=GATED_PIECES,
    shapes=shapes_by_intermediate,
    moe_layers=all_layers,
    n_experts=attrgetter("num_experts"),
    top_k=attrgetter("num_experts_per_tok"),
)
