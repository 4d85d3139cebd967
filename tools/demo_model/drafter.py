"""The EAGLE-3 head, in the weight names of SpecForge and SGLang.

It reads three states of the target's residual stream, and drafts with one decoder layer and an
output layer over the most frequent tokens. From the second draft step on it reads its own state
instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import causal_mask, rotary_tables, rotate
from .fusion import fusible
from .shape import Shape

__all__ = ["SMOKE_DRAFTER", "STANDARD_DRAFTER", "Context", "DrafterShape", "EagleHead"]


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of a head.

    Parameters
    ----------
    boundaries
        Which three states of the target it reads, as indices of Transformers' ``hidden_states``.
    """

    draft_vocab_size: int = 3072
    intermediate_size: int = 1024
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    boundaries: tuple[int, int, int] = (2, 5, 7)


STANDARD_DRAFTER = DrafterShape()
SMOKE_DRAFTER = DrafterShape(
    draft_vocab_size=300,
    intermediate_size=48,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    boundaries=(2, 3, 5),
)


@dataclass
class Context:
    """Keys and values that the next draft step attends to.

    Parameters
    ----------
    keys, values
        [B, heads, S, d]: of the first step, one per position, seen causally.
    own_keys, own_values
        Of the later steps, [B, heads, S, d] each, seen by their own position alone.
    """

    keys: Tensor
    values: Tensor
    own_keys: list[Tensor]
    own_values: list[Tensor]


class _RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        return functional.rms_norm(states.float(), self.weight.shape, self.weight, self.eps)


class _Attention(nn.Module):
    def __init__(self, hidden: int, shape: DrafterShape) -> None:
        super().__init__()
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * hidden, queries, bias=False)
        self.k_proj = nn.Linear(2 * hidden, keys, bias=False)
        self.v_proj = nn.Linear(2 * hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class _MidLayer(nn.Module):
    def __init__(self, hidden: int, shape: DrafterShape, eps: float) -> None:
        super().__init__()
        self.hidden_norm = _RmsNorm(hidden, eps)
        self.input_layernorm = _RmsNorm(hidden, eps)
        self.post_attention_layernorm = _RmsNorm(hidden, eps)
        self.self_attn = _Attention(hidden, shape)
        self.mlp = _Mlp(hidden, shape.intermediate_size)


class EagleHead(nn.Module):
    """One EAGLE-3 head for a target of a given shape.

    Parameters
    ----------
    target
        Shape of the target; its embeddings are used and not copied.
    shape
        Sizes of the head.
    kept
        int64[draft_vocab_size], ascending: the target's ids that the head can draft.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, target: Shape, shape: DrafterShape, kept: Tensor) -> None:
        super().__init__()
        hidden, eps = target.hidden_size, target.rms_norm_eps
        self.target, self.shape = target, shape
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = _MidLayer(hidden, shape, eps)
        self.norm = _RmsNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab_size, bias=False)
        self.register_buffer("d2t", kept - torch.arange(len(kept)))
        allowed = torch.zeros(target.vocab_size, dtype=torch.bool)
        allowed[kept] = True
        self.register_buffer("t2d", allowed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)

    @property
    def kept(self) -> Tensor:
        """int64[draft_vocab_size]: target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t))

    def step(
        self, embedded: Tensor, states: Tensor, context: Context | None
    ) -> tuple[Tensor, Tensor, Context]:
        """Take one draft step at every position at once; return logits, states and context.

        See `advance`, which stops before the logits.
        """
        states, context = self.advance(embedded, states, context)
        return self.lm_head(self.norm(states)), states, context

    def advance(
        self, embedded: Tensor, states: Tensor, context: Context | None
    ) -> tuple[Tensor, Context]:
        """Take one draft step at every position at once.

        Parameters
        ----------
        embedded
            [B, S, H]: embedding of the token that follows each position, s steps on.
        states
            [B, S, H]: ``fc`` of the target's states at the first step, then the state that the
            step before returned.
        context
            What the step before returned; None at the first.

        Returns
        -------
        states, context
            [B, S, H], and the context for the next step.
        """
        length = embedded.shape[1]
        later = 0 if context is None else 1 + len(context.own_keys)
        positions = torch.arange(later, later + length)
        query, key, value = (
            part.transpose(1, 2) for part in self.project(embedded, states, positions)
        )
        if context is None:
            context = Context(key, value, [], [])
        else:
            context = Context(
                context.keys,
                context.values,
                [*context.own_keys, key],
                [*context.own_values, value],
            )
        joined = _attend(query, context).transpose(1, 2)
        return self.finish(joined, states), context

    def project(
        self, embedded: Tensor, states: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each [..., heads, d]; `positions` broadcasts to [...]."""
        layer, shape = self.midlayer, self.shape
        mixed = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(states)], dim=-1)
        tables = rotary_tables(int(positions.max()) + 1, shape.head_dim, self.target.rope_theta)
        cos, sin = (table[positions].unsqueeze(-2) for table in tables)

        def heads(projected: Tensor, count: int) -> Tensor:
            return projected.view(*projected.shape[:-1], count, shape.head_dim)

        attention = layer.self_attn
        query = rotate(heads(attention.q_proj(mixed), shape.num_attention_heads), cos, sin)
        key = rotate(heads(attention.k_proj(mixed), shape.num_key_value_heads), cos, sin)
        value = heads(attention.v_proj(mixed), shape.num_key_value_heads)
        groups = shape.num_attention_heads // shape.num_key_value_heads
        return query, key.repeat_interleave(groups, -2), value.repeat_interleave(groups, -2)

    def finish(self, joined: Tensor, states: Tensor) -> Tensor:
        """Return the new state from the attention's output, [..., heads, d]."""
        layer = self.midlayer
        states = states + layer.self_attn.o_proj(joined.flatten(-2))
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return states

    def state_for_export(self) -> dict[str, Tensor]:
        """Return the tensors of the file: bfloat16, d2t int64, t2d bool."""
        return {
            name: (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor).contiguous()
            for name, tensor in self.state_dict().items()
        }

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        target, shape = self.target, self.shape
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": target.hidden_size,
            "target_hidden_size": target.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "attention_bias": False,
            "mlp_bias": False,
            "rms_norm_eps": target.rms_norm_eps,
            "rope_theta": target.rope_theta,
            "rope_scaling": None,
            "max_position_embeddings": 1024,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": shape.draft_vocab_size,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "eagle_config": {
                # 0-based layers whose outputs are read: one less than the index into hidden_states.
                "eagle_aux_hidden_state_layer_ids": [b - 1 for b in shape.boundaries],
                "use_aux_hidden_state": True,
                "norm_before_residual": False,
                "norm_before_fc": False,
                "norm_output": False,
            },
        }


def _attend(query: Tensor, context: Context) -> Tensor:
    """Attend to the first step causally and to the later ones at the same position."""
    length, dim = query.shape[2:]
    scores = query @ context.keys.transpose(-2, -1)
    scale = dim**-0.5
    own = torch.stack(
        [(query * key).sum(-1) for key in context.own_keys] or [query.new_empty(query.shape[:3])]
    )
    if not context.own_keys:
        own = own[:0]
    chance, own_chance = _joint_softmax(scores, own, causal_mask(length), scale)
    out = chance.to(context.values.dtype) @ context.values
    for share, value in zip(own_chance, context.own_values, strict=True):
        out = out + share.unsqueeze(-1) * value
    return out


@fusible
def _joint_softmax(
    scores: Tensor, own: Tensor, future: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the joint probabilities of [..., S, S] scores and of [n, ..., S] own ones."""
    text, path = scores.float() * scale + future, own.float() * scale
    top = torch.maximum(text.amax(-1), path.amax(0)) if len(own) else text.amax(-1)
    top = top.detach()
    text, path = (text - top.unsqueeze(-1)).exp(), (path - top).exp()
    total = text.sum(-1) + path.sum(0)
    return (text / total.unsqueeze(-1)).to(scores.dtype), (path / total).to(own.dtype)
