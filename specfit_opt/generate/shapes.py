"""Shapes of the mixture-of-experts models that generated instances imitate."""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import Registry


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that matter to subtree selection.

    Attributes
    ----------
    name : str
    n_layers : int
        MoE layers.
    n_experts : int
        Routed experts per layer.
    top_k : int
        Experts that a token activates per layer.
    expert_bytes : int
        Bytes of one expert.
    source : str
        Where the sizes come from.
    """

    name: str
    n_layers: int
    n_experts: int
    top_k: int
    expert_bytes: int
    source: str


# An expert is three matrices of hidden x intermediate size; the source gives both and the bits per
# weight.
SHAPES: Registry[ModelShape] = Registry(
    "shape",
    (
        ModelShape(
            "qwen3-30b-a3b", 48, 128, 8, 3 * 2048 * 768 * 9 // 16,
            "Qwen3-30B-A3B model card and config: hidden 2048, intermediate 768; 4.5 bits",
        ),
        ModelShape(
            "mixtral-8x7b", 32, 8, 2, 3 * 4096 * 14336 * 9 // 16,
            "Mixtral of Experts, arXiv 2401.04088: hidden 4096, intermediate 14336; 4.5 bits",
        ),
        ModelShape(
            "gpt-oss-120b", 36, 128, 4, 3 * 2880 * 2880 * 17 // 32,
            "gpt-oss model card, arXiv 2508.10925: hidden and intermediate 2880; MXFP4, 4.25 bits",
        ),
        ModelShape(
            "olmoe-1b-7b", 16, 64, 8, 3 * 2048 * 1024 * 2,
            "OLMoE, arXiv 2409.02060: hidden 2048, intermediate 1024; bfloat16",
        ),
        ModelShape(
            "deepseek-v3", 58, 256, 8, 3 * 7168 * 2048 * 9 // 16,
            "DeepSeek-V3, arXiv 2412.19437: hidden 7168, intermediate 2048; 4.5 bits",
        ),
        ModelShape(
            "tiny", 4, 16, 4, 80_000_000,
            "no model: small enough to read, experts large enough to matter",
        ),
    ),
)  # fmt: skip
