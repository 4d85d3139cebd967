"""gpt-oss: fused and transposed in every checkpoint, gate and up interleaved, with biases."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ._common import all_layers
from .expert_family import ExpertFamily, ExpertPiece

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def shapes(config: PretrainedConfig) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of one expert's weights, input dimension first, and biases."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    return ((hidden, 2 * intermediate), (2 * intermediate,), (intermediate, hidden), (hidden,))


FAMILY = ExpertFamily(
    name="gpt_oss",
    pieces=(
        ExpertPiece("gate_up_proj"),
        ExpertPiece("gate_up_proj_bias"),
        ExpertPiece("down_proj"),
        ExpertPiece("down_proj_bias"),
    ),
    shapes=shapes,
    moe_layers=all_layers,
    n_experts=attrgetter("num_local_experts"),
    top_k=attrgetter("num_experts_per_tok"),
    router_module="mlp.router",
    expert_key=None,
)
