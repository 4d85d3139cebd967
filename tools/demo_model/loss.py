"""Cross-entropy over the vocabulary in chunks that stay in cache, gradients made on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fusion import fusible

__all__ = ["distribution_loss", "vocabulary_loss"]


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


def distribution_loss(
    hidden: Tensor, weight: Tensor, goal: Tensor, counted: Tensor, chunk: int = 512
) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy against distributions, and the most probable ids.

    Parameters
    ----------
    hidden, weight
        [T, H] and [V, H], of one type.
    goal
        [T, V], rows that sum to 1.
    counted
        bool[T]: the rows that the mean is over; at least one.
    chunk
        Rows of logits alive at a time.
    """
    loss, best = _DistributionLoss.apply(hidden, weight, goal, counted, chunk)
    return loss, best


class _DistributionLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, goal: Tensor, counted: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32)
        factor = counted.float() / counted.sum()
        best = []
        for start in range(0, len(hidden), chunk):
            rows = slice(start, min(start + chunk, len(hidden)))
            logits = hidden[rows] @ weight.T
            best.append(logits.argmax(-1))
            loss, slope = _soft_loss_and_slope(logits, goal[rows], factor[rows].unsqueeze(1))
            total += loss
            grad_hidden[rows] = slope @ weight
            grad_weight += slope.T @ hidden[rows]
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        joined = torch.cat(best)
        ctx.mark_non_differentiable(joined)
        return total, joined

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None, None


@fusible
def _soft_loss_and_slope(logits: Tensor, goal: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    log_chance = torch.log_softmax(logits.float(), dim=-1)
    wanted = goal.float()
    slope = (log_chance.exp() - wanted) * factor
    return -(wanted * log_chance * factor).sum(), slope.to(logits.dtype)


@fusible
def _loss_and_slope(logits: Tensor, goal: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    log_chance = torch.log_softmax(logits.float(), dim=-1)
    hit = torch.arange(logits.shape[1]).unsqueeze(0) == goal
    slope = (log_chance.exp() - hit.float()) * scale
    return -log_chance.gather(1, goal).sum(), slope.to(logits.dtype)
