"""How often each token uses each expert, and what little of that table is worth keeping."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..predictors.routing_network import RoutingNetwork
from .examples import Examples

__all__ = ["start_from_table"]

#: Occurrences that the average over all tokens counts as, beside a token's own.
_PRIOR = 4.0
#: Entries of the table that are in memory at once.
_ENTRIES = 1 << 24
#: Root mean square of the embedding's entries.
_SCALE = 0.5


@torch.no_grad()
def start_from_table(network: RoutingNetwork, examples: Examples) -> None:
    """Have an untrained network score by how often each token used each expert.

    The table of log frequencies, over their average, is replaced by the product of embeddings and
    output weights that is nearest to it in square error, where a token counts as often as it
    occurs: the best of its rank. Training then begins where a table of frequencies would end.

    Notes
    -----
    The factors come from the eigenvectors of the table's moments, O(V (L E)^2 + (L E)^3), without
    ever holding the whole table.
    """
    shape = network.shape
    columns = shape.n_layers * shape.n_experts
    rank = min(shape.embedding_size, columns)
    every = _used_columns(examples)
    mean = torch.bincount(every[every >= 0], minlength=columns).float() / len(examples)
    mean = mean.clamp_min(0.5 / len(examples))
    moments = torch.zeros(columns, columns, dtype=torch.float32)
    for _, table, count in _tables(examples, mean):
        moments += (table * count[:, None]).T @ table
    basis = torch.linalg.eigh(moments).eigenvectors[:, -rank:]
    weight = network.embedding.weight
    weight.zero_()  # a token that does not occur is like the average
    for tokens, table, _ in _tables(examples, mean):
        weight[tokens, :rank] = table @ basis
    seen = torch.unique(examples.tokens)
    scale = _SCALE / weight[seen, :rank].square().mean().sqrt().clamp_min(1e-6)
    weight *= scale
    network.scores.weight.zero_()
    hidden = shape.hidden_size
    network.scores.weight[:, hidden : hidden + rank] = basis / scale
    network.scores.bias.copy_(mean.log())


def _used_columns(examples: Examples) -> Tensor:
    """Return where in a row of L E entries each used expert lies; -1 pads."""
    ids = examples.experts.long()
    column = ids + torch.arange(ids.shape[1])[:, None] * examples.n_experts
    return torch.where(ids < 0, -1, column).flatten(1)


def _tables(examples: Examples, mean: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield tokens, their rows of log frequencies over the average, and their occurrences."""
    columns = _used_columns(examples)
    order = torch.argsort(examples.tokens, stable=True)
    tokens, counts = torch.unique_consecutive(examples.tokens[order], return_counts=True)
    ends = torch.cumsum(counts, 0)
    step = max(1, _ENTRIES // len(mean))
    for at in range(0, len(tokens), step):
        some = counts[at : at + step]
        first = int(ends[at] - counts[at])
        nodes = order[first : int(ends[min(at + step, len(tokens)) - 1])]
        row = torch.repeat_interleave(torch.arange(len(some)), some)
        used = columns[nodes]
        place = (row[:, None] * len(mean) + used)[used >= 0]
        table = torch.bincount(place, minlength=len(some) * len(mean)).float()
        rate = (table.view(len(some), -1) + _PRIOR * mean) / (some[:, None] + _PRIOR)
        yield tokens[at : at + step], (rate / mean).log(), some.float()
