"""All experts of a layer as three batched matrix products of fixed capacity.

The stock loop calls each expert on its own rows. Here the (token, slot) pairs are sorted by expert
and laid out in a block of E x C rows, so that one product serves all experts. C is the load of the
busiest expert, or the capacity limit if that is smaller; pairs beyond it are dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .fusion import fusible

__all__ = ["Dispatch", "dispatch", "experts_forward"]


@dataclass(frozen=True)
class Dispatch:
    """Where each (token, slot) pair goes.

    Parameters
    ----------
    row
        int64[T, k]: row of the block that computes the pair.
    kept
        bool[T, k], or None when nothing was dropped.
    pair
        int64[E * C]: the pair that each row computes; 0 for unused rows.
    used
        bool[E * C]: False for unused rows.
    capacity
        C.
    load
        int64[E]: pairs that chose each expert.
    """

    row: Tensor
    kept: Tensor | None
    pair: Tensor
    used: Tensor
    capacity: int
    load: Tensor

    @property
    def dropped(self) -> int:
        """Number of pairs that found no room."""
        return 0 if self.kept is None else int((~self.kept).sum())


@torch.no_grad()
def dispatch(chosen: Tensor, n_experts: int, capacity_factor: float | None) -> Dispatch:
    """Lay out the pairs; `capacity_factor` is a multiple of the mean load, None for no limit.

    Complexity: one stable sort of T * k small integers.
    """
    flat = chosen.reshape(-1)
    load = torch.bincount(flat, minlength=n_experts)
    busiest = int(load.max())
    capacity = busiest
    if capacity_factor is not None:
        capacity = min(busiest, int(capacity_factor * flat.numel() / n_experts) + 1)
    order = torch.sort(flat.to(torch.int16), stable=True).indices
    first = torch.cumsum(load, 0) - load
    expert = flat.index_select(0, order)
    place = torch.arange(flat.numel()) - first.index_select(0, expert)
    row_sorted = expert * capacity + place
    kept = None
    pair = torch.zeros(n_experts * capacity, dtype=torch.int64)
    used = torch.zeros(n_experts * capacity, dtype=torch.bool)
    row = torch.empty_like(flat)
    if capacity < busiest:
        fits = place < capacity
        row_sorted = torch.where(fits, row_sorted, 0)
        kept_flat = torch.empty_like(fits)
        kept_flat[order] = fits
        kept = kept_flat.view_as(chosen)
        pair[row_sorted[fits]] = order[fits]
        used[row_sorted[fits]] = True
    else:
        pair[row_sorted] = order
        used[row_sorted] = True
    row[order] = row_sorted
    return Dispatch(row.view_as(chosen), kept, pair, used, capacity, load)


def experts_forward(
    hidden: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor, plan: Dispatch
) -> Tensor:
    """Return the weighted sum of the chosen experts' outputs.

    Parameters
    ----------
    hidden
        [T, H].
    weight
        float32[T, k], routing weights.
    gate_up, down
        [E, 2I, H] and [E, H, I], in the type of `hidden`.
    plan
        From `dispatch`.

    Returns
    -------
    Tensor
        [T, H], in the type of `hidden`.
    """
    out: Tensor = _Experts.apply(hidden, weight, gate_up, down, plan)
    return out


class _Experts(torch.autograd.Function):
    """Scatter and gather are permutations here, so both directions are plain gathers."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, gate_up: Tensor, down: Tensor, plan: Dispatch
    ) -> Tensor:
        n_experts = gate_up.shape[0]
        top_k = weight.shape[1]
        token = torch.div(plan.pair, top_k, rounding_mode="floor")
        block = hidden.index_select(0, token).view(n_experts, plan.capacity, -1)
        scale = weight.reshape(-1).index_select(0, plan.pair) * plan.used
        scale = scale.to(hidden.dtype).view(n_experts, 1, plan.capacity)
        # Experts' rows lie along the last dimension: gate and up are then contiguous halves.
        both = torch.bmm(gate_up, block.transpose(1, 2))
        # The routing weight is applied before the last product, where the rows are short.
        scaled = _activate(both, scale)
        rows = torch.bmm(scaled.transpose(1, 2), down.transpose(1, 2)).view(-1, hidden.shape[1])
        ctx.save_for_backward(block, both, scaled, scale, token, gate_up, down)
        ctx.plan = plan
        return _gather_sum(rows, plan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        block, both, scaled, scale, token, gate_up, down = ctx.saved_tensors
        plan: Dispatch = ctx.plan
        grad_rows = grad.index_select(0, token).view(block.shape)
        grad_down = torch.bmm(grad_rows.transpose(1, 2), scaled.transpose(1, 2))
        grad_scaled = torch.bmm(down.transpose(1, 2), grad_rows.transpose(1, 2))
        grad_both, grad_scale = _activate_back(both, scale, grad_scaled)
        grad_gate_up = torch.bmm(grad_both, block)
        grad_block = torch.bmm(grad_both.transpose(1, 2), gate_up).view(-1, grad.shape[1])
        grad_weight = grad_scale.view(-1).index_select(0, plan.row.view(-1)).view(plan.row.shape)
        if plan.kept is not None:
            grad_weight = grad_weight * plan.kept
        return _gather_sum(grad_block, plan), grad_weight, grad_gate_up, grad_down, None


@fusible
def _activate(both: Tensor, scale: Tensor) -> Tensor:
    """Return silu(gate) * up * scale, [E, I, C]."""
    gate, up = both.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up * scale).to(both.dtype)


@fusible
def _activate_back(both: Tensor, scale: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up together, [E, 2I, C], and of scale, [E, C]."""
    gate, up = both.float().chunk(2, dim=1)
    grad = grad.float()
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    grad_scale = (grad * silu * up).sum(1)
    grad = grad * scale
    grad_gate = grad * up * (sigmoid + silu * (1 - sigmoid))
    return torch.cat([grad_gate, grad * silu], dim=1).to(both.dtype), grad_scale


def _gather_sum(rows: Tensor, plan: Dispatch) -> Tensor:
    """Return [T, H]: the sum over a token's pairs of their rows."""
    kept = plan.kept if plan.kept is not None else torch.ones_like(plan.row, dtype=torch.bool)
    return _pick(rows, plan.row, kept)


@fusible
def _pick(rows: Tensor, row: Tensor, kept: Tensor) -> Tensor:
    picked = torch.nn.functional.embedding(row, rows).float() * kept.unsqueeze(-1)
    return picked.sum(1).to(rows.dtype)
