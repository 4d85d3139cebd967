"""The training of a `RoutingNetwork`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from specfit_opt.files import Trace

from .._ambient import on_the_cpu
from ..errors import InvalidInputError
from ..predictors.routing_network import NetworkShape, RoutingNetwork
from .examples import Examples, split_examples
from .token_table import start_from_table

__all__ = ["PredictorTraining", "train_predictor"]

#: Nodes per step, the rate at the peak, and the steps until it is reached.
BATCH, LEARNING_RATE, WARM_UP = 512, 4e-3, 100
#: Shares of nodes whose token, or state, the network is not shown, so that it learns to do without.
_HIDE_TOKEN, _HIDE_STATE = 0.01, 0.1
#: Epochs without a lower held-out loss after which training ends.
_PATIENCE = 2
#: Held-out nodes that are looked at, drawn once.
_MOST_HELD = 50_000
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class PredictorTraining:
    """A trained network and how it came about.

    Attributes
    ----------
    network : RoutingNetwork
        As it was after the epoch of the lowest held-out loss, rounded to what a file keeps.
    nodes, held_out_nodes : int
        Examples that were trained on, and those that the figures below are of.
    train_loss, held_out_loss : tuple of float
        Nats per used expert after each epoch; the first entry of ``held_out_loss`` is before any.
    recall : ndarray of float64, shape (L,)
        Share of the used experts that were predicted, on held-out texts.
    recall_by_depth : dict of int to float
        The same, averaged over layers, by the nodes' depth.
    """

    network: RoutingNetwork
    nodes: int
    held_out_nodes: int
    train_loss: tuple[float, ...]
    held_out_loss: tuple[float, ...]
    recall: NDArray[np.float64]
    recall_by_depth: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, without the network, as JSON can hold them."""
        return {
            "nodes": self.nodes,
            "held_out_nodes": self.held_out_nodes,
            "train_loss": list(self.train_loss),
            "held_out_loss": list(self.held_out_loss),
            "recall": self.recall.tolist(),
            "recall_by_depth": {str(d): r for d, r in self.recall_by_depth.items()},
        }


@on_the_cpu()
@torch.inference_mode(False)
@torch.enable_grad()
def train_predictor(
    traces: Sequence[Trace],
    *,
    epochs: int = 4,
    seed: int = 0,
    embedding_size: int = 128,
    hidden_size: int = 256,
    held_out: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> PredictorTraining:
    """Train a network to predict the experts of draft nodes.

    Every node of a trace carries its true routing, whether it was accepted or not, so all of them
    are examples. The loss is the cross-entropy of a layer's softmax against the experts in use,
    minimised by AdamW with a warm-up and a cosine decay.

    Parameters
    ----------
    traces : sequence of Trace
        From one target and drafter, all recorded with states or all without.
    epochs : int
        Passes over the examples at most; training ends early when the held-out loss no longer
        falls.
    seed : int
        Of the split, the first weights and the order.
    embedding_size, hidden_size : int
        Of the network.
    held_out : float
        Share of the texts to judge by.
    progress : callable, optional
        Called as ``progress(done, total)``, in nodes.

    Returns
    -------
    PredictorTraining

    Raises
    ------
    InvalidInputError
        If the traces do not fit each other or hold a single text, or a size is out of range.

    Notes
    -----
    The same seed on the same machine with the same number of threads gives the same network.
    """
    for name, value in (
        ("epochs", epochs),
        ("embedding_size", embedding_size),
        ("hidden_size", hidden_size),
    ):
        if value < 1:
            raise InvalidInputError(f"{name} must be at least 1, got {value}")
    train, held = split_examples(traces, held_out, seed)
    generator = torch.Generator().manual_seed(seed)
    held = held.take(torch.randperm(len(held), generator=generator)[:_MOST_HELD])
    network = _untrained(train, embedding_size, hidden_size, generator)
    train_loss, held_loss = _fit(network, train, held, epochs, generator, progress)
    _finish(network, train)
    recall, by_depth = _recall(network, held)
    return PredictorTraining(
        network, len(train), len(held), tuple(train_loss), tuple(held_loss), recall, by_depth
    )


def _untrained(
    train: Examples, embedding_size: int, hidden_size: int, generator: torch.Generator
) -> RoutingNetwork:
    """Return a network for the examples that scores by how often each token used each expert."""
    shape = NetworkShape(
        n_layers=train.experts.shape[1],
        n_experts=train.n_experts,
        top_k=train.experts.shape[2],
        vocab_size=int(train.tokens.max()) + 1,
        state_size=0 if train.states is None else train.states.shape[1],
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        max_depth=max(int(train.depth.max()), 1),
    )
    with torch.random.fork_rng(devices=[]):
        network = RoutingNetwork(shape).float()
    _draw(network, generator)
    start_from_table(network, train)
    return network


def _fit(
    network: RoutingNetwork,
    train: Examples,
    held: Examples,
    epochs: int,
    generator: torch.Generator,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[float], list[float]]:
    """Train the network, leave it as it was best, and return the losses by epoch."""
    per_epoch = math.ceil(len(train) / BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    train_loss: list[float] = []
    held_loss = [_loss_over(network, held)]
    best, waited = _weights(network), 0
    for epoch in range(epochs):
        total = 0.0
        order = torch.randperm(len(train), generator=generator)
        for i, rows in enumerate(torch.split(order, BATCH)):
            for group in optimizer.param_groups:
                group["lr"] = _rate(epoch * per_epoch + i, epochs * per_epoch)
            batch = _partly_hidden(train.take(rows), network.shape, generator)
            loss = _loss(_scores(network, batch), batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(loss.detach()) * len(rows)
            if progress is not None:
                progress(epoch * len(train) + i * BATCH + len(rows), epochs * len(train))
        train_loss.append(total / len(train))
        held_loss.append(_loss_over(network, held))
        waited = 0 if held_loss[-1] < min(held_loss[:-1]) else waited + 1
        if not waited:
            best = _weights(network)
        elif waited == _PATIENCE:
            break
    network.load_state_dict(best)
    return train_loss, held_loss


def _draw(network: RoutingNetwork, generator: torch.Generator) -> None:
    """Draw the first weights, by the seed alone."""
    with torch.no_grad():
        for layer in (network.inner, network.second):
            bound = layer.in_features**-0.5
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.zero_()
        network.depth.weight.zero_()


def _rate(step: int, steps: int) -> float:
    warm = min((step + 1) / WARM_UP, 1.0)
    return LEARNING_RATE * warm * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _partly_hidden(batch: Examples, shape: NetworkShape, generator: torch.Generator) -> Examples:
    """Return the batch with some tokens unknown and some states zero."""
    hidden = torch.rand(len(batch), generator=generator, dtype=torch.float32) < _HIDE_TOKEN
    tokens = torch.where(hidden, shape.vocab_size, batch.tokens)
    states = batch.states
    if states is not None:
        shown = torch.rand(
            len(batch), 1, generator=generator, dtype=torch.float32
        ) >= _HIDE_STATE
        states = states.float() * shown
    return Examples(tokens, batch.depth, states, batch.experts, batch.n_experts)


def _scores(network: RoutingNetwork, batch: Examples) -> Tensor:
    states = None if batch.states is None else batch.states.float()
    scores: Tensor = network(batch.tokens, batch.depth, states)
    return scores


def _loss(scores: Tensor, batch: Examples) -> Tensor:
    """Return the cross-entropy per used expert."""
    used = batch.used()
    return -(functional.log_softmax(scores, dim=-1) * used).sum() / used.sum().clamp_min(1.0)


@torch.inference_mode()
def _loss_over(network: RoutingNetwork, examples: Examples) -> float:
    total = 0.0
    for rows in torch.split(torch.arange(len(examples)), _BLOCK):
        part = examples.take(rows)
        total += float(_loss(_scores(network, part), part)) * len(rows)
    return total / len(examples)


def _weights(network: RoutingNetwork) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@torch.no_grad()
def _finish(network: RoutingNetwork, train: Examples) -> None:
    """Give tokens that training did not see what it learned for unknown ones; round as a file."""
    embedding = network.embedding.weight
    seen = torch.zeros(len(embedding), dtype=torch.bool)
    seen[train.tokens] = True
    embedding[~seen] = embedding[-1].clone()
    for weight in network.parameters():
        weight.copy_(weight.half())
    network.eval()


@torch.inference_mode()
def _recall(
    network: RoutingNetwork, held: Examples
) -> tuple[NDArray[np.float64], dict[int, float]]:
    found, there = [], []
    for rows in torch.split(torch.arange(len(held)), _BLOCK):
        part = held.take(rows)
        best = _scores(network, part).topk(network.shape.top_k, dim=-1).indices
        used = part.used()
        found.append(used.gather(2, best).sum(dim=-1))
        there.append(used.sum(dim=-1))
    hits, total = torch.cat(found).double(), torch.cat(there).double()
    by_depth = {
        int(depth): float(hits[held.depth == depth].sum() / total[held.depth == depth].sum())
        for depth in torch.unique(held.depth)
    }
    return (hits.sum(dim=0) / total.sum(dim=0)).numpy(), by_depth
