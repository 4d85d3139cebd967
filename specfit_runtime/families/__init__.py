"""The model families whose experts can be offloaded: one file each, and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import deepseek_v3, glm4_moe, gpt_oss, mixtral, olmoe, qwen3_moe
from .lookup import family_of
from .registry import ExpertFamily, ExpertPiece

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Every family by model type.
FAMILIES: dict[str, ExpertFamily] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (qwen3_moe, mixtral, olmoe, deepseek_v3, glm4_moe, gpt_oss)
}


def family_for(config: PretrainedConfig) -> ExpertFamily:
    """Return the family that serves a model.

    Parameters
    ----------
    config : PretrainedConfig

    Raises
    ------
    InvalidInputError
        If no family does. The message says why: layers with a recurrent state, an unknown way of
        holding experts, or no experts at all.
    CheckpointError
        If the family is served but the checkpoint is quantised; the message says what to load
        instead.
    """
    return family_of(FAMILIES, config)


__all__ = ["FAMILIES", "ExpertFamily", "ExpertPiece", "family_for"]
