"""Muon for the matrices, AdamW for embeddings, routers and norms.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by its nearest semi-orthogonal matrix,
found by a Newton-Schulz iteration. Expert tensors are stacks of matrices, so one batched product
serves a layer's experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "make_optimizers", "orthogonalise"]

# Coefficients of the quintic iteration, as published with Muon.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(stack: Tensor, steps: int = 5) -> Tensor:
    """Return [..., m, n] with singular values near 1, in bfloat16."""
    wide = stack.to(torch.bfloat16)
    tall = wide.shape[-2] > wide.shape[-1]
    if tall:
        wide = wide.transpose(-2, -1)
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = wide @ wide.transpose(-2, -1)
        wide = _A * wide + (_B * square + _C * square @ square) @ wide
    return wide.transpose(-2, -1) if tall else wide


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix; tensors of three dimensions are stacks of matrices.

    Parameters
    ----------
    params
        Matrices and stacks. The attribute ``muon_parts`` of a parameter gives the rows of the
        matrices that it holds one above the other (gate and up; query, key and value), each
        orthogonalised alone.
    lr
        The update has spectral norm `lr` times the square root of max(1, rows / columns).
    momentum
        Nesterov momentum.
    weight_decay
        Decoupled: times `lr`.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average = state["momentum"]
                average.lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(average, group["momentum"])
                parts = getattr(parameter, "muon_parts", (parameter.shape[-2],))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                for rows, piece in zip(
                    parameter.split(parts, dim=-2), ahead.split(parts, dim=-2), strict=True
                ):
                    scale = max(1.0, rows.shape[-2] / rows.shape[-1]) ** 0.5
                    rows.add_(orthogonalise(piece), alpha=-group["lr"] * scale)


def make_optimizers(
    model: nn.Module, muon_lr: float = 0.02, adam_lr: float = 3e-3, router_lr: float = 1e-3
) -> Mapping[str, torch.optim.Optimizer]:
    """Return the two optimizers of a model, each over the parameters that suit it.

    Routers learn slowly: their input has norm ``sqrt(hidden)``, and a router that moves as fast as
    the embeddings sends most tokens to a few experts before these have learned anything.
    """
    matrices, others, routers = [], [], []
    for name, parameter in model.named_parameters():
        if "router" in name:
            routers.append(parameter)
        elif parameter.ndim < 2 or "embed" in name or "lm_head" in name:
            others.append(parameter)
        else:
            matrices.append(parameter)
    groups = [{"params": others, "lr": adam_lr}]
    if routers:
        groups.append({"params": routers, "lr": router_lr})
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return {"muon": Muon(matrices, lr=muon_lr), "adam": adam}
