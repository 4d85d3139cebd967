"""Cross-entropy over the vocabulary in chunks that stay in cache, gradients made on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fusion import fusible

__all__ = ["vocabulary_loss"]


def vocabulary_loss(hidden: Tensor, weight: Tensor, target: Tensor, chunk: int = 512) -> Tensor:
    """Return the mean cross-entropy of ``hidden @ weight.T`` against `target`, in nats.

    Parameters
    ----------
    hidden, weight
        [T, H] and [V, H], of one type.
    target
        int64[T].
    chunk
        Rows of logits alive at a time.
    """
    out: Tensor = _Loss.apply(hidden, weight, target, chunk)
    return out


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, chunk: int) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32)
        count = target.numel()
        for start in range(0, count, chunk):
            rows = slice(start, min(start + chunk, count))
            goal = target[rows].unsqueeze(1)
            loss, narrow = _loss_and_slope(hidden[rows] @ weight.T, goal, 1.0 / count)
            total += loss
            grad_hidden[rows] = narrow @ weight
            grad_weight += narrow.T @ hidden[rows]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return total / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None


@fusible
def _loss_and_slope(logits: Tensor, goal: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    log_chance = torch.log_softmax(logits.float(), dim=-1)
    hit = torch.arange(logits.shape[1]).unsqueeze(0) == goal
    slope = (log_chance.exp() - hit.float()) * scale
    return -log_chance.gather(1, goal).sum(), slope.to(logits.dtype)
