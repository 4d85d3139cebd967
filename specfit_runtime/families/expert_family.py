"""What a model family is: where its experts sit and how checkpoints name their tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class ExpertPiece:
    """One parameter of the stock experts module.

    Attributes
    ----------
    parameter : str
        Its name in the module, such as ``"gate_up_proj"``; its first dimension is the expert.
    parts : tuple of str
        What it is called in a checkpoint that stores every expert by itself; the parts are equally
        large and concatenated along their first dimension. Empty if no checkpoint stores it so.
    """

    parameter: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpertFamily:
    """A model family as the registry holds it.

    Keys of decoder layers are ``model.layers.{layer}.`` and what stands below, with ``layer``
    counted over all decoder layers. Names are given as they are after `renames`.

    Attributes
    ----------
    name : str
        ``config.model_type`` of the models it serves.
    pieces : tuple of ExpertPiece
        Every parameter of the experts module, in the order in which a record holds them.
    shapes : callable
        ``shapes(config)`` gives the shape of each piece of one expert, in the same order.
    moe_layers : callable
        ``moe_layers(config)`` gives the decoder layers that have experts, ascending.
    n_experts, top_k : callable
        Experts per MoE layer and experts per token, from the configuration.
    experts_module : str
        Path of the experts module within a decoder layer; the fused layout stores
        ``{experts_module}.{parameter}``.
    router_module, norm_module : str
        Likewise of the router, and of the norm whose output the router and the experts read.
    groups : callable
        ``groups(config)`` gives the number of groups that experts fall into and how many of them a
        token may use. Groups are ranked by the sum of their two best experts.
    expert_key : str or None
        Key below the layer in the layout with one tensor per expert and part, with the fields
        ``expert`` and ``part``. None if no checkpoint has that layout.
    renames : tuple of (str, str)
        Regular expressions and replacements that turn a checkpoint's names into the module's.
    ignored : callable
        ``ignored(config)`` gives regular expressions of keys that are left out on purpose.
    """

    name: str
    pieces: tuple[ExpertPiece, ...]
    shapes: Callable[[PretrainedConfig], tuple[tuple[int, ...], ...]]
    moe_layers: Callable[[PretrainedConfig], tuple[int, ...]]
    n_experts: Callable[[PretrainedConfig], int]
    top_k: Callable[[PretrainedConfig], int]
    experts_module: str = "mlp.experts"
    router_module: str = "mlp.gate"
    norm_module: str = "post_attention_layernorm"
    groups: Callable[[PretrainedConfig], tuple[int, int]] = lambda config: (1, 1)
    expert_key: str | None = "mlp.experts.{expert}.{part}"
    renames: tuple[tuple[str, str], ...] = ()
    ignored: Callable[[PretrainedConfig], tuple[str, ...]] = lambda config: ()

    def check(self, config: PretrainedConfig) -> None:
        """Check what no tensor's shape shows and a forward pass would stumble over.

        Raises
        ------
        CheckpointError
            If numbers of the configuration contradict each other.
        """
        experts, top_k = self.n_experts(config), self.top_k(config)
        groups, used = self.groups(config)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        turned = getattr(config, "qk_rope_head_dim", None) or head_dim
        for fits, what in (
            (min(config.hidden_size, config.vocab_size) >= 1, "hidden_size or vocab_size is 0"),
            (1 <= top_k <= experts, f"a token uses {top_k} of {experts} experts"),
            (
                1 <= used <= groups and not experts % groups and top_k <= used * experts // groups,
                f"a token uses {top_k} of {experts} experts in {used} of {groups} groups",
            ),
            (groups == 1 or experts >= 2 * groups, f"{experts} experts make no {groups} groups"),
            (
                1 <= kv_heads <= heads and not heads % kv_heads,
                f"{heads} attention heads do not share {kv_heads} key-value heads",
            ),
            (
                turned == head_dim or "qk_rope_head_dim" not in config.to_dict(),
                f"head_dim is {head_dim} and qk_rope_head_dim {turned}",
            ),
            (turned > 0 and not turned % 2, f"heads of {turned} numbers cannot be turned in pairs"),
            (0.0 <= config.rms_norm_eps < 1.0, f"rms_norm_eps is {config.rms_norm_eps}"),
        ):
            if not fits:
                raise CheckpointError(f"config.json contradicts itself: {what}")

    def module_key(self, key: str) -> str:
        """Return the module's name of a tensor that the checkpoint calls ``key``."""
        for pattern, replacement in self.renames:
            key = re.sub(pattern, replacement, key)
        return key

    def experts_path(self, layer: int) -> str:
        """Return the path of the experts module of a decoder layer in the whole model."""
        return f"model.layers.{layer}.{self.experts_module}"

    def fused_key(self, layer: int, piece: ExpertPiece) -> str:
        """Return the key of a piece of all experts of a decoder layer, in the fused layout."""
        return f"{self.experts_path(layer)}.{piece.parameter}"

    def part_keys(self, layer: int, expert: int, piece: ExpertPiece) -> tuple[str, ...]:
        """Return the keys of a piece of one expert in the layout per expert, or ()."""
        if self.expert_key is None:
            return ()
        return tuple(
            f"model.layers.{layer}.{self.expert_key.format(expert=expert, part=part)}"
            for part in piece.parts
        )
