"""Mixtral: published checkpoints name the block and the projections in their own way."""

from __future__ import annotations

from operator import attrgetter

from ._common import all_layers, shapes_by_intermediate
from .expert_family import ExpertFamily, ExpertPiece

FAMILY = ExpertFamily(
    name="mixtral",
    pieces=(
        ExpertPiece("gate_up_proj", ("w1.weight", "w3.weight")),
        ExpertPiece("down_proj", ("w2.weight",)),
    ),
    shapes=shapes_by_intermediate,
    moe_layers=all_layers,
    n_experts=attrgetter("num_local_experts"),
    top_k=attrgetter("num_experts_per_tok"),
    renames=((r"\.block_sparse_moe\.", ".mlp."),),
)
