"""What `Router` computes with: scores of all experts from embeddings and states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ._gates import ExpertRule, Gates
from .router_map import RouterMap, unit


class RouterScores(ABC):
    """Scores draft tokens of one target.

    Attributes
    ----------
    shape : tuple of int
        Layers, experts per layer, experts per token.
    state_size : int
        Size of the drafter's states that it reads.
    """

    shape: tuple[int, int, int]
    state_size: int

    def __init__(self, model: Any) -> None:
        self._embed: Tensor = model.get_input_embeddings().weight.detach()

    @torch.inference_mode()
    def experts(self, tokens: NDArray[np.int64], states: Tensor | None) -> NDArray[np.int32]:
        """Return the experts that score best, shape (m, L, k).

        Parameters
        ----------
        tokens : ndarray of int64, shape (m,)
        states : Tensor, shape (m, state_size), or None
            None counts as zeros.
        """
        found = self._chosen(self._scores(*self._inputs(tokens, states)))
        return found.to("cpu", torch.int32).numpy()

    @abstractmethod
    def _scores(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Return the score of each expert, shape (m, L, E), of float32 inputs."""

    @abstractmethod
    def _chosen(self, scores: Tensor) -> Tensor:
        """Return the experts that win, the best first, shape (m, L, k)."""

    def _inputs(
        self, tokens: NDArray[np.int64], states: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        device = self._embed.device
        ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64)).to(device)
        if states is None:
            states = torch.zeros(len(ids), self.state_size, dtype=torch.float32, device=device)
        return functional.embedding(ids, self._embed).float(), states.to(device, torch.float32)


class GateScores(RouterScores):
    """The target's own routers, where hidden states go from the embedding to the state."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        gates = self._gates = Gates.of(model)
        self.shape = gates.n_layers, gates.n_experts, gates.rule.top_k
        self.state_size = self._embed.shape[1]
        # The norm's gain is folded into the router behind it.
        self._weight = (gates.weight * gates.norm.unsqueeze(1)).transpose(1, 2)
        steps = torch.linspace(0.0, 1.0, gates.n_layers, device=self._embed.device)
        self._share = steps[:, None, None]

    def _scores(self, embedded: Tensor, states: Tensor) -> Tensor:
        hidden = torch.lerp(unit(embedded), unit(states), self._share)
        hidden = functional.rms_norm(hidden, hidden.shape[-1:], eps=self._gates.eps)
        return torch.bmm(hidden, self._weight).transpose(0, 1)

    def _chosen(self, scores: Tensor) -> Tensor:
        return self._gates.experts(scores)


class MapScores(RouterScores):
    """A fitted map's scores, which estimate probabilities."""

    def __init__(self, model: Any, fitted: RouterMap) -> None:
        super().__init__(model)
        fitted.check_target(model.config)
        self._map = fitted.to(self._embed.device)
        self._rule = ExpertRule.of(model.config)
        self.shape = fitted.n_layers, fitted.n_experts, fitted.top_k
        self.state_size = fitted.state_size

    @torch.inference_mode()
    def probabilities(
        self, tokens: NDArray[np.int64], states: Tensor | None
    ) -> NDArray[np.float32]:
        """Return the scores as probabilities that add up to about k, shape (m, L, E)."""
        likely = self._scores(*self._inputs(tokens, states)).clamp_(0.0, 1.0)
        likely *= self._map.top_k / likely.sum(dim=-1, keepdim=True).clamp_min(1e-6)
        return likely.clamp_(max=1.0).cpu().numpy()

    def _scores(self, embedded: Tensor, states: Tensor) -> Tensor:
        return self._map.scores(embedded, states)

    def _chosen(self, scores: Tensor) -> Tensor:
        return self._rule.choose(scores)
