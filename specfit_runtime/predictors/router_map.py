"""A linear map from a token's embedding and the drafter's state to what routers choose by."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from specfit_opt.checks import Kind, Real, Text, Whole

from ..errors import CheckpointError, InvalidInputError
from ..families import family_for
from ._checkpoint_folder import CONFIG, read_folder, read_weights, write_new_folder

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: What ``config.json`` says that it is, and the version of its layout.
_WHAT, VERSION = "router map", 1
_FIELDS: dict[str, Kind] = {
    **dict.fromkeys(("n_layers", "n_experts", "top_k", "hidden_size"), Whole(least=1)),
    **dict.fromkeys(("state_size", "nodes"), Whole()),
    "target": Text(),
    "ridge": Real(),
}

_EPS = 1e-6


@dataclass(frozen=True, eq=False)
class RouterMap:
    """Scores of all experts, linear in the embedding and the drafter's state at unit scale.

    ``scores = rms(embedding) @ embedding_weight + rms(state) @ state_weight + constant``

    Attributes
    ----------
    embedding_weight : Tensor of float32, shape (H, L, E)
    state_weight : Tensor of float32, shape (H_d, L, E)
    constant : Tensor of float32, shape (L, E)
    top_k : int
        Experts per token of the target.
    target : str
        Model type of the target.
    nodes : int
        Recorded nodes that it was fitted to.
    ridge : float
        Penalty of the fit, see
        :func:`~specfit_runtime.predictors.fit_router_map.fit_router_map`.

    Notes
    -----
    A map to what the routers *read* could say no more where there are at least as many hidden
    dimensions as experts: any map to scores is one to hidden states followed by the router.
    """

    embedding_weight: Tensor
    state_weight: Tensor
    constant: Tensor
    top_k: int
    target: str
    nodes: int
    ridge: float

    @property
    def n_layers(self) -> int:
        """MoE layers, L."""
        return self.constant.shape[0]

    @property
    def n_experts(self) -> int:
        """Experts per layer, E."""
        return self.constant.shape[1]

    @property
    def hidden_size(self) -> int:
        """Size of the target's embeddings, H."""
        return self.embedding_weight.shape[0]

    @property
    def state_size(self) -> int:
        """Size of the drafter's states, H_d."""
        return self.state_weight.shape[0]

    def scores(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Return how each expert scores, shape (m, L, E).

        Parameters
        ----------
        embedded : Tensor of float32, shape (m, H)
        states : Tensor of float32, shape (m, H_d)
            Zeros where the state is not known.
        """
        total = self.constant.flatten() + unit(embedded) @ self.embedding_weight.flatten(1)
        total += unit(states) @ self.state_weight.flatten(1)
        return total.view(-1, self.n_layers, self.n_experts)

    def to(self, device: torch.device) -> RouterMap:
        """Return the same map on ``device``."""
        return RouterMap(
            self.embedding_weight.to(device),
            self.state_weight.to(device),
            self.constant.to(device),
            self.top_k,
            self.target,
            self.nodes,
            self.ridge,
        )

    def check_target(self, config: PretrainedConfig) -> None:
        """Check that the map is for a target with that configuration.

        Raises
        ------
        InvalidInputError
            If its shape or type differs.
        """
        family = family_for(config)
        have = {
            "model type": (self.target, config.model_type),
            "hidden size": (self.hidden_size, config.hidden_size),
            "MoE layers": (self.n_layers, len(family.moe_layers(config))),
            "experts per layer": (self.n_experts, family.n_experts(config)),
            "experts per token": (self.top_k, family.top_k(config)),
        }
        for what, (fitted, wanted) in have.items():
            if fitted != wanted:
                raise InvalidInputError(
                    f"the router map was fitted for a target with {what} {fitted}, this one has "
                    f"{wanted}; fit one for it: specfit fit-router"
                )

    def save(self, folder: str | Path) -> None:
        """Write ``config.json``, ``model.safetensors`` and a card, ``README.md``, all or nothing.

        Raises
        ------
        InvalidInputError
            If ``folder`` holds something already, or the folder above is missing.
        OSError
            If a file cannot be written.
        """
        tensors = {
            "embedding_weight": self.embedding_weight,
            "state_weight": self.state_weight,
            "constant": self.constant,
        }
        write_new_folder(folder, self.describe(), tensors, self._card())

    @classmethod
    def load(cls, folder: str | Path) -> RouterMap:
        """Read what `save` wrote.

        Raises
        ------
        CheckpointError
            If a file is missing or damaged, or is something else.
        """
        place = Path(os.path.abspath(os.path.expanduser(folder)))
        config, stored = read_folder(place, _WHAT, VERSION, "specfit fit-router", _FIELDS)
        shape = config["n_layers"], config["n_experts"]
        wanted = {
            "embedding_weight": (config["hidden_size"], *shape),
            "state_weight": (config["state_size"], *shape),
            "constant": shape,
        }
        if config["top_k"] > config["n_experts"]:
            raise CheckpointError(f"{place}: {CONFIG}: top_k exceeds n_experts")
        names = ("top_k", "target", "nodes", "ridge")
        rest: dict[str, Any] = {name: config[name] for name in names}
        weights = read_weights(place, stored, wanted)
        return cls(
            weights["embedding_weight"], weights["state_weight"], weights["constant"], **rest
        )

    def describe(self) -> dict[str, Any]:
        """Return sizes and what it was fitted to, as ``config.json`` holds them."""
        return {
            "format": f"specfit {_WHAT}",
            "version": VERSION,
            "target": self.target,
            "n_layers": self.n_layers,
            "n_experts": self.n_experts,
            "top_k": self.top_k,
            "hidden_size": self.hidden_size,
            "state_size": self.state_size,
            "nodes": self.nodes,
            "ridge": self.ridge,
        }

    def _card(self) -> str:
        numbers = sum(t.numel() for t in (self.embedding_weight, self.state_weight, self.constant))
        return (
            "# Router map\n\n"
            f"Predicts the experts of draft tokens for a {self.target} target of "
            f"{self.n_layers} MoE layers, {self.n_experts} experts each, top-{self.top_k}: linear "
            f"in the token's embedding ({self.hidden_size}) and the drafter's state "
            f"({self.state_size}), {numbers:,} numbers in float32.\n\n"
            f"Fitted by ridge regression (ridge {self.ridge:g}) to the recorded routing of "
            f"{self.nodes:,} draft nodes. For the target and the drafter of that recording alone; "
            "`specfit eval-router` measures it.\n"
        )


def unit(rows: Tensor) -> Tensor:
    """Return rows scaled to a root mean square of 1; zeros stay zeros."""
    return functional.rms_norm(rows, rows.shape[-1:], eps=_EPS)
