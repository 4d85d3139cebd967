"""A small network from a draft token, the drafter's state and the depth to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["NetworkShape", "RoutingNetwork"]


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a `RoutingNetwork`.

    Attributes
    ----------
    n_layers, n_experts, top_k : int
        Of the target.
    vocab_size : int
        Token ids with an embedding of their own, from 0 on; others share one.
    state_size : int
        Size of the drafter's states; 0 if none are read.
    embedding_size, hidden_size : int
    max_depth : int
        Depths that are told apart, from 1 on; deeper nodes count as that deep, and the root, whose
        state the drafter also has from the target's own, as 1.
    """

    n_layers: int
    n_experts: int
    top_k: int
    vocab_size: int
    state_size: int
    embedding_size: int = 128
    hidden_size: int = 256
    max_depth: int = 8


class RoutingNetwork(nn.Module):
    """Scores all experts of all layers at once.

    One hidden layer reads embedding, state and depth, a second one is added to it, and the scores
    are linear in both and in the embedding. Where a state is not known, zeros or None, a learned
    vector stands in for it.

    Parameters
    ----------
    shape : NetworkShape
    device : torch.device or str
        Where it is made, in float32.
    """

    def __init__(self, shape: NetworkShape, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        width, hidden = shape.embedding_size, shape.hidden_size
        # Whatever PyTorch's defaults are.
        there: dict[str, Any] = {"device": device, "dtype": torch.float32}
        # The last row is for tokens that training did not see.
        self.embedding = nn.Embedding(shape.vocab_size + 1, width, **there)
        self.depth = nn.Embedding(shape.max_depth, hidden, **there)
        self.unknown_state = nn.Parameter(torch.zeros(hidden, **there))
        self.inner = nn.Linear(width + shape.state_size, hidden, **there)
        self.norm = nn.LayerNorm(hidden, **there)
        self.second = nn.Linear(hidden, hidden, **there)
        self.scores = nn.Linear(hidden + width, shape.n_layers * shape.n_experts, **there)

    def forward(self, tokens: Tensor, depth: Tensor, states: Tensor | None) -> Tensor:
        """Return the scores, shape (m, L, E).

        Parameters
        ----------
        tokens, depth : Tensor of int64, shape (m,)
        states : Tensor of float32, shape (m, state_size), or None
            A row of zeros is an unknown state. Not read where ``state_size`` is 0.
        """
        shape = self.shape
        known = (tokens >= 0) & (tokens < shape.vocab_size)
        embedded = self.embedding(torch.where(known, tokens, shape.vocab_size))
        inputs = embedded
        level = self.depth((depth - 1).clamp(0, shape.max_depth - 1))
        if shape.state_size:
            if states is None:
                states = embedded.new_zeros(len(tokens), shape.state_size)
            unknown = (states == 0.0).all(dim=1, keepdim=True)
            level = level + unknown * self.unknown_state
            inputs = torch.cat([embedded, states], dim=1)
        hidden = functional.silu(self.inner(inputs) + level)
        hidden = hidden + functional.silu(self.second(self.norm(hidden)))
        scores: Tensor = self.scores(torch.cat([hidden, embedded], dim=1))
        return scores.view(-1, shape.n_layers, shape.n_experts)
