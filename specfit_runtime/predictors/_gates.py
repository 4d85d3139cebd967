"""A model's routers, side by side: what each expert scores in every MoE layer, and which win."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..families import family_for

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class ExpertRule:
    """How a router takes experts by their scores.

    Attributes
    ----------
    top_k : int
        Experts per token.
    n_groups, top_groups : int
        Equal groups that experts fall into, and how many of them a token may use.
    """

    top_k: int
    n_groups: int = 1
    top_groups: int = 1

    @classmethod
    def of(cls, config: PretrainedConfig) -> ExpertRule:
        """Return the rule of the models with that configuration."""
        family = family_for(config)
        n_groups, top_groups = family.groups(config)
        return cls(int(family.top_k(config)), int(n_groups), int(top_groups))

    def choose(self, scores: Tensor) -> Tensor:
        """Return the experts that win, the best first.

        Parameters
        ----------
        scores : Tensor, shape (..., E)

        Returns
        -------
        Tensor of int64, shape (..., k)

        Notes
        -----
        A group counts as much as its two best experts together; experts of other groups than the
        best are out.
        """
        if self.top_groups < self.n_groups:
            grouped = scores.reshape(*scores.shape[:-1], self.n_groups, -1)
            worth = grouped.topk(2, dim=-1).values.sum(dim=-1)
            out = torch.ones_like(worth, dtype=torch.bool)
            out.scatter_(-1, worth.topk(self.top_groups, dim=-1).indices, False)
            scores = grouped.masked_fill(out.unsqueeze(-1), -torch.inf).flatten(-2)
        return scores.topk(self.top_k, dim=-1).indices


@dataclass(frozen=True, eq=False)
class Gates:
    """The routers of all MoE layers of a model, in float32 on its device.

    Attributes
    ----------
    weight : Tensor, shape (L, E, H)
    bias : Tensor, shape (L, E), or None
        Added to the logits.
    correction : Tensor, shape (L, E), or None
        Added to the sigmoid of the logits, where experts are chosen by that.
    norm : Tensor, shape (L, H)
        Gain of the RMS norm that each router reads.
    eps : float
        Of these norms.
    rule : ExpertRule
    """

    weight: Tensor
    bias: Tensor | None
    correction: Tensor | None
    norm: Tensor
    eps: float
    rule: ExpertRule

    @classmethod
    def of(cls, model: Any) -> Gates:
        """Copy the routers of ``model``, which is left as it is.

        Raises
        ------
        InvalidInputError, CheckpointError
            If no family of `specfit_runtime.families` serves the model.
        """
        config = model.config
        family = family_for(config)
        layers = [model.get_submodule(f"model.layers.{i}") for i in family.moe_layers(config)]
        routers = [layer.get_submodule(family.router_module) for layer in layers]
        norms = [layer.get_submodule(family.router_norm) for layer in layers]

        def stacked(name: str) -> Tensor | None:
            if not hasattr(routers[0], name):
                return None
            return torch.stack([getattr(router, name).detach().float() for router in routers])

        weight = stacked("weight")
        assert weight is not None  # every router has one
        return cls(
            weight=weight,
            bias=stacked("bias"),
            correction=stacked("e_score_correction_bias"),
            norm=torch.stack([norm.weight.detach().float() for norm in norms]),
            eps=float(config.rms_norm_eps),
            rule=ExpertRule.of(config),
        )

    @property
    def n_layers(self) -> int:
        """MoE layers, L."""
        return self.weight.shape[0]

    @property
    def n_experts(self) -> int:
        """Experts per layer, E."""
        return self.weight.shape[1]

    def experts(self, logits: Tensor) -> Tensor:
        """Return the experts that the routers take at these logits.

        Parameters
        ----------
        logits : Tensor, shape (n, L, E)
            ``weight`` times what each router reads; the bias is added here.

        Returns
        -------
        Tensor of int64, shape (n, L, k)
            The best first.
        """
        if self.bias is not None:
            logits = logits + self.bias
        if self.correction is not None:
            # Elsewhere the weights of the chosen experts are a softmax, which keeps the order.
            logits = logits.sigmoid() + self.correction
        return self.rule.choose(logits)
