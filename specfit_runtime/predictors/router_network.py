"""A small network from a draft token, the drafter's state and the depth to experts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["RouterNetwork", "RouterShape"]

#: Newton steps that bring the sum of a layer's probabilities to k, to a few thousandths.
_NEWTON_STEPS = 5
#: Logarithm of a time after which an expert is through for certain, in single precision.
_LONGEST = 5.0


@dataclass(frozen=True)
class RouterShape:
    """Sizes of a `RouterNetwork`.

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

    def to_dict(self) -> dict[str, int]:
        """Return the sizes by name."""
        return asdict(self)


class RouterNetwork(nn.Module):
    """Scores all experts of all layers at once.

    One hidden layer reads embedding, state and depth, a second one is added to it, and the scores
    are linear in both and in the embedding. Where a state is not known, zeros or None, a learned
    vector stands in for it.

    Parameters
    ----------
    shape : RouterShape
    device : torch.device or str
        Where it is made, in float32.

    Attributes
    ----------
    temperature : float
        What scores are divided by before they become probabilities; 1 until it is fitted.
    """

    def __init__(self, shape: RouterShape, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.shape = shape
        self.temperature = 1.0
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

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return how likely each expert is used, same shape; layers add up to k.

        As if every expert waited for an exponential time, at a rate of exp(score / temperature),
        and those were used that are through by the moment at which k are on average. Drawing k
        experts one after the other in proportion to their rates comes to the same but for the
        moment, which then is that of the k-th.
        """
        k = self.shape.top_k
        if k == self.shape.n_experts:
            return torch.ones_like(scores)
        rate = scores / self.temperature
        # At first the moment at which the k-th and the next expert are through with even odds.
        edge = rate.topk(k + 1, dim=-1).values[..., k - 1 :]
        moment = math.log(math.log(2.0)) - edge.mean(dim=-1, keepdim=True)
        for _ in range(_NEWTON_STEPS):
            passed = (rate + moment).clamp_max(_LONGEST).exp()
            still = torch.exp(-passed)
            excess = (1.0 - still).sum(dim=-1, keepdim=True) - k
            slope = (passed * still).sum(dim=-1, keepdim=True)
            moment = moment - (excess / slope.clamp_min(1e-6)).clamp(-1.0, 1.0)
        return -torch.expm1(-(rate + moment).clamp_max(_LONGEST).exp())
