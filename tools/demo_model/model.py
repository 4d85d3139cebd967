"""The target while it trains: the parameters and mathematics of Qwen3-MoE, laid out for speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import causal_attention, rotary_tables, rotate
from .experts import dispatch, experts_forward
from .fusion import fusible
from .loss import vocabulary_loss
from .shape import Shape

__all__ = ["FastMoe", "Pass"]


@dataclass(frozen=True)
class Pass:
    """What one forward pass found.

    Parameters
    ----------
    loss
        Mean cross-entropy, nats per token.
    balance
        Load-balancing loss summed over the layers; L when the load is uniform.
    dropped
        Share of the (token, slot) pairs that found no room.
    load
        int64[L, E], pairs per expert.
    """

    loss: Tensor
    balance: Tensor
    dropped: float
    load: Tensor


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, width, experts = shape.hidden_size, shape.moe_intermediate_size, shape.num_experts
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        depth_scale = (2 * shape.num_hidden_layers) ** -0.5

        def matrix(*size: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(*size) * (0.5 * scale * size[-1] ** -0.5))

        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.qkv = matrix(queries + 2 * keys, hidden)
        self.query_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.key_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.out = matrix(hidden, queries, scale=depth_scale)
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.router = nn.Parameter(torch.randn(experts, hidden) * 0.02)
        self.gate_up = matrix(experts, 2 * width, hidden)
        self.down = matrix(experts, hidden, width, scale=depth_scale)
        # Several matrices in one tensor: the optimizer orthogonalises each alone.
        self.qkv.muon_parts = (queries, keys, keys)  # type: ignore[attr-defined]
        self.gate_up.muon_parts = (width, width)  # type: ignore[attr-defined]


class FastMoe(nn.Module):
    """Qwen3-MoE for training on a CPU: float32 parameters, matrix products in `compute`."""

    def __init__(self, shape: Shape, compute: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape = shape
        self.compute = compute
        self.embed = nn.Parameter(torch.randn(shape.vocab_size, shape.hidden_size) * 0.02)
        self.layers = nn.ModuleList([_Layer(shape) for _ in range(shape.num_hidden_layers)])
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))

    def forward(self, ids: Tensor, target: Tensor, capacity_factor: float | None) -> Pass:
        """Return losses for int64[B, S] ids and their successors."""
        states, balance, dropped, load, _ = self.states(ids, capacity_factor)
        final = functional.rms_norm(states, (states.shape[-1],), self.norm, self.shape.rms_norm_eps)
        flat = final.reshape(-1, final.shape[-1]).to(self.compute)
        loss = vocabulary_loss(flat, self.embed.to(self.compute), target.reshape(-1))
        return Pass(loss, balance, dropped, load)

    def logits(self, ids: Tensor) -> Tensor:
        """Return float32[B, S, V] with nothing dropped."""
        return self.features(ids, ())[0]

    def features(self, ids: Tensor, boundaries: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return the logits and the residual stream at some boundaries, side by side.

        Boundary i is what Transformers calls ``hidden_states[i]``: the output of i layers.
        """
        states, *_, kept = self.states(ids, None, boundaries)
        final = functional.rms_norm(states, (states.shape[-1],), self.norm, self.shape.rms_norm_eps)
        logits = (final.to(self.compute) @ self.embed.to(self.compute).T).float()
        return logits, torch.cat(kept, dim=-1) if kept else None

    def states(
        self,
        ids: Tensor,
        capacity_factor: float | None,
        boundaries: Sequence[int] = (),
        chosen: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float, Tensor, list[Tensor]]:
        """Return the residual stream before the last norm and what was found on the way.

        That is: balance loss, dropped share, load, and the stream at each boundary. Every layer's
        int64[B * S, k] choice of experts is appended to `chosen`.
        """
        batch, length = ids.shape
        shape = self.shape
        stream = functional.embedding(ids.reshape(-1), self.embed)
        balance = stream.new_zeros(())
        dropped = 0
        loads = []
        kept: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            if number in boundaries:
                kept[number] = stream.view(batch, length, -1)
            normed = _norm(stream, layer.input_norm, shape.rms_norm_eps, self.compute)
            attended = self._attend(layer, normed, batch, length)
            stream, normed, narrow = _add_and_norm(
                stream, attended, layer.post_norm, shape.rms_norm_eps
            )
            # The router works in float32: its choice is a discontinuity.
            chance = torch.softmax(normed @ layer.router.T, dim=-1)
            weight, picked = torch.topk(chance, shape.num_experts_per_tok, dim=-1)
            weight = weight / weight.sum(-1, keepdim=True)
            if chosen is not None:
                chosen.append(picked)
            plan = dispatch(picked, shape.num_experts, capacity_factor)
            out = experts_forward(
                narrow,
                weight,
                layer.gate_up.to(self.compute),
                layer.down.to(self.compute),
                plan,
            )
            stream = stream + out
            share = plan.load.to(chance.dtype) / picked.numel()
            balance = balance + shape.num_experts * (share * chance.mean(0)).sum()
            dropped += plan.dropped
            loads.append(plan.load)
        pairs = batch * length * shape.num_experts_per_tok * shape.num_hidden_layers
        last = stream.view(batch, length, -1)
        return last, balance, dropped / pairs, torch.stack(loads), [kept[b] for b in boundaries]

    def _attend(self, layer: nn.Module, normed: Tensor, batch: int, length: int) -> Tensor:
        shape, dim = self.shape, self.shape.head_dim
        heads, keys = shape.num_attention_heads, shape.num_key_value_heads
        groups = heads // keys
        mixed = (normed @ layer.qkv.to(self.compute).T).view(batch, length, heads + 2 * keys, dim)
        cos, sin = rotary_tables(length, dim, shape.rope_theta)
        query, key, value = _heads(
            mixed, keys, layer.query_norm, layer.key_norm, cos, sin, shape.rms_norm_eps
        )
        joined = causal_attention(
            query.view(batch * keys, groups * length, dim),
            key.view(batch * keys, length, dim),
            value.view(batch * keys, length, dim),
            groups,
        )
        joined = joined.view(batch, heads, length, dim).transpose(1, 2)
        return joined.reshape(batch * length, heads * dim) @ layer.out.to(self.compute).T


@fusible
def _norm(stream: Tensor, weight: Tensor, eps: float, compute: torch.dtype) -> Tensor:
    return _rms(stream, weight, eps).to(compute)


@fusible
def _add_and_norm(
    stream: Tensor, update: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, its norm, and that in the type of `update`."""
    stream = stream + update
    normed = _rms(stream, weight, eps)
    return stream, normed, normed.to(update.dtype)


@fusible
def _heads(
    mixed: Tensor,
    value_heads: int,
    query_norm: Tensor,
    key_norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split [B, L, heads, d] into query, key and value, [B, heads, L, d], normed and turned."""
    heads = mixed.shape[2]
    mixed = mixed.transpose(1, 2)
    query = mixed[:, : heads - 2 * value_heads].float()
    key = mixed[:, heads - 2 * value_heads : heads - value_heads].float()
    query = rotate(_rms(query, query_norm, eps), cos, sin).to(mixed.dtype)
    key = rotate(_rms(key, key_norm, eps), cos, sin).to(mixed.dtype)
    return query.contiguous(), key.contiguous(), mixed[:, heads - value_heads :].contiguous()


def _rms(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps) * weight
