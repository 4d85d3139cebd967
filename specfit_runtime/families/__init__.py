"""The model families whose experts can be offloaded: one file each, and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specfit_opt.registry import Registry

from . import deepseek_v3, glm4_moe, gpt_oss, mixtral, olmoe, qwen3_moe
from .expert_family import ExpertFamily, ExpertPiece
from .lookup import family_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: Every family by model type.
FAMILIES = Registry(
    "family",
    (m.FAMILY for m in (qwen3_moe, mixtral, olmoe, deepseek_v3, glm4_moe, gpt_oss)),
    plural="families",
)


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
