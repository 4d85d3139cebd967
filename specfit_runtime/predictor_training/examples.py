"""The nodes of traces as examples to learn from, split by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specfit_opt.files import Trace

from ..errors import InvalidInputError

__all__ = ["Examples", "split_examples"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Nodes and the experts that the target used for them.

    Attributes
    ----------
    tokens, depth : Tensor of int64, shape (N,)
    states : Tensor of float16, shape (N, H_d), or None
    experts : Tensor of int16 or int32, shape (N, L, k)
        -1 pads.
    n_experts : int
    """

    tokens: Tensor
    depth: Tensor
    states: Tensor | None
    experts: Tensor
    n_experts: int

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Tensor) -> Examples:
        """Return those of the examples."""
        states = None if self.states is None else self.states[rows]
        return Examples(
            self.tokens[rows], self.depth[rows], states, self.experts[rows], self.n_experts
        )

    def used(self) -> Tensor:
        """Return 1 where a node uses an expert, float32 of shape (N, L, E)."""
        ids = self.experts.long()
        # Padding falls into a column of its own.
        used = torch.zeros(
            *ids.shape[:2], self.n_experts + 1, dtype=torch.float32, device=ids.device
        )
        used.scatter_(2, torch.where(ids < 0, self.n_experts, ids), 1.0)
        return used[:, :, :-1]


def split_examples(
    traces: Sequence[Trace], held_out: float, seed: int
) -> tuple[Examples, Examples]:
    """Return the examples to train on, and those of the texts that are held out.

    Parameters
    ----------
    traces : sequence of Trace
        All with states of one size, or all without.
    held_out : float
        Share of the texts, each a prompt with its output, that training does not see; at least one.
    seed : int
        Of the draw.

    Raises
    ------
    InvalidInputError
        If there is no trace or a single text, the share is not between 0 and 1, or the traces do
        not fit each other.
    """
    if not 0.0 < held_out < 1.0:
        raise InvalidInputError(f"held_out must be between 0 and 1, got {held_out!r}")
    _check_traces(traces)
    texts = [(trace, first, last) for trace in traces for first, last in trace.prompts]
    if len(texts) < 2:
        raise InvalidInputError(
            "the traces hold a single text, and one is held out to judge by; record at least two "
            "prompts"
        )
    order = np.random.default_rng(seed).permutation(len(texts))
    n_held = min(max(round(held_out * len(texts)), 1), len(texts) - 1)
    held = set(order[:n_held].tolist())
    parts: tuple[list[Examples], list[Examples]] = ([], [])
    for i, (trace, first, last) in enumerate(texts):
        nodes = slice(int(trace.cycle_start[first]), int(trace.cycle_start[last]))
        parts[i in held].append(_examples(trace, nodes))
    return _joined(parts[0]), _joined(parts[1])


def _examples(trace: Trace, nodes: slice) -> Examples:
    return Examples(
        torch.from_numpy(trace.token[nodes].astype(np.int64)),
        torch.from_numpy(trace.depth[nodes].astype(np.int64)),
        None if trace.states is None else torch.from_numpy(trace.states[nodes].copy()),
        torch.from_numpy(trace.experts[nodes].copy()),
        trace.n_experts,
    )


def _joined(parts: Sequence[Examples]) -> Examples:
    states = [part.states for part in parts if part.states is not None]
    return Examples(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.depth for part in parts]),
        torch.cat(states) if states else None,
        torch.cat([part.experts for part in parts]),
        parts[0].n_experts,
    )


def _check_traces(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InvalidInputError("no trace to train on; give at least one")

    def figures(trace: Trace) -> tuple[int, ...]:
        size = 0 if trace.states is None else trace.states.shape[1]
        return trace.n_layers, trace.n_experts, trace.experts.shape[2], size

    first = figures(traces[0])
    for trace in traces[1:]:
        if figures(trace) != first:
            raise InvalidInputError(
                f"trace {trace.name!r} has {_words(figures(trace))}, and {traces[0].name!r} "
                f"{_words(first)}: they are not of one target and drafter, or only some were "
                "recorded with --states"
            )


def _words(figures: tuple[int, ...]) -> str:
    n_layers, n_experts, top_k, size = figures
    states = f"states of size {size}" if size else "no states"
    return f"{n_layers} layers of {n_experts} experts, top-{top_k}, and {states}"
