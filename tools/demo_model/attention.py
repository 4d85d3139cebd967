"""Causal attention for short sequences, as batched products that keep the probabilities."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .fusion import fusible

__all__ = ["causal_attention", "causal_mask", "rotary_tables", "rotate"]


@lru_cache(maxsize=8)
def rotary_tables(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32[length, head_dim], halves repeated as Transformers has them."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [..., length, head_dim]."""
    half = states.shape[-1] // 2
    turned = torch.cat([-states[..., half:], states[..., :half]], dim=-1)
    return states * cos + turned * sin


def causal_attention(query: Tensor, key: Tensor, value: Tensor, groups: int) -> Tensor:
    """Attend within each sequence.

    Parameters
    ----------
    query
        [B, groups * L, d], the query heads that share a key head one after the other.
    key, value
        [B, L, d].
    groups
        Query heads per key head.

    Returns
    -------
    Tensor
        [B, groups * L, d]. Memory: B * groups * L * L probabilities are kept for the way back.
    """
    out: Tensor = _Attention.apply(query, key, value, groups)
    return out


@lru_cache(maxsize=8)
def causal_mask(length: int) -> Tensor:
    """Return float32[length, length] to add to scores: -inf for what lies ahead, else 0."""
    mask = torch.full((length, length), float("-inf"), dtype=torch.float32).triu(1)
    return mask


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, groups: int) -> Tensor:
        length, dim = key.shape[1:]
        scores = torch.bmm(query, key.transpose(1, 2)).view(-1, length, length)
        chance = _masked_softmax(scores, causal_mask(length), dim**-0.5)
        chance = chance.view(len(query), -1, length)
        ctx.save_for_backward(query, key, value, chance)
        return torch.bmm(chance, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, chance = ctx.saved_tensors
        grad_value = torch.bmm(chance.transpose(1, 2), grad)
        grad_chance = torch.bmm(grad, value.transpose(1, 2))
        grad_scores = _softmax_back(grad_chance, chance, key.shape[2] ** -0.5)
        grad_query = torch.bmm(grad_scores, key)
        grad_key = torch.bmm(grad_scores.transpose(1, 2), query)
        return grad_query, grad_key, grad_value, None


@fusible
def _masked_softmax(scores: Tensor, future: Tensor, scale: float) -> Tensor:
    return torch.softmax(scores.float() * scale + future, dim=-1).to(scores.dtype)


@fusible
def _softmax_back(grad: Tensor, chance: Tensor, scale: float) -> Tensor:
    wide, chance = grad.float(), chance.float()
    inner = (wide * chance).sum(-1, keepdim=True)
    return (chance * (wide - inner) * scale).to(grad.dtype)
