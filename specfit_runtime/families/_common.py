"""What several families share: layouts of experts and which layers have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .expert_family import ExpertPiece

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Gate and up projection in one parameter, then the down projection, as in torch.nn.Linear.
GATED_PIECES = (
    ExpertPiece("gate_up_proj", ("gate_proj.weight", "up_proj.weight")),
    ExpertPiece("down_proj", ("down_proj.weight",)),
)


def gated_shapes(hidden: int, intermediate: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of :data:`GATED_PIECES` for one expert."""
    return ((2 * intermediate, hidden), (hidden, intermediate))


def shapes_by_intermediate(config: PretrainedConfig) -> tuple[tuple[int, ...], ...]:
    """Return the shapes where experts are as wide as ``intermediate_size`` says."""
    return gated_shapes(config.hidden_size, config.intermediate_size)


def shapes_by_moe_intermediate(config: PretrainedConfig) -> tuple[tuple[int, ...], ...]:
    """Return the shapes where experts have a width of their own."""
    return gated_shapes(config.hidden_size, config.moe_intermediate_size)


def all_layers(config: PretrainedConfig) -> tuple[int, ...]:
    """Return every decoder layer."""
    return tuple(range(config.num_hidden_layers))


def layers_after_dense(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the decoder layers after the first ``first_k_dense_replace``."""
    return tuple(range(config.first_k_dense_replace, config.num_hidden_layers))


def prediction_layers(config: PretrainedConfig) -> tuple[str, ...]:
    """Return patterns of the multi-token prediction layers, stored after the decoder layers.

    The stock model has no place for them. One is assumed where the configuration gives no number.
    """
    count = None
    for name in ("num_nextn_predict_layers", "num_mtp_layers"):
        if count is None:
            count = getattr(config, name, None)
    first = config.num_hidden_layers
    layers = range(first, first + (1 if count is None else int(count)))
    return tuple(rf"^model\.layers\.{layer}\." for layer in layers)
