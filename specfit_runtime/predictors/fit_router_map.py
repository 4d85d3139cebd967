"""Fits a `RouterMap` to recorded decoding, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specfit_opt.files import Trace

from ..errors import InvalidInputError
from ..families import family_for
from .router_map import RouterMap, unit

#: Weight of the penalty, per node; see `fit_router_map`.
RIDGE = 1e-3

#: Nodes that are taken in at once.
_BLOCK = 4096


@torch.inference_mode()
def fit_router_map(
    traces: Sequence[Trace],
    model: Any,
    *,
    ridge: float = RIDGE,
    progress: Callable[[int, int], None] | None = None,
) -> RouterMap:
    """Fit the map that predicts from embedding and state which experts a node uses.

    Least squares over all nodes of the traces: the target of expert e is 1 where the node uses it
    and 0 elsewhere, so a score estimates a probability, and the best k scores are the experts that
    are most likely used.

    Parameters
    ----------
    traces : sequence of Trace
        Recorded with states, all from one target and drafter.
    model : transformers.PreTrainedModel
        That target; its embeddings are read.
    ridge : float
        Penalty on the squared weights (not on the constant) per node, in units of the inputs' mean
        square, which is 1.
    progress : callable, optional
        Called as ``progress(done, total)``, in nodes.

    Returns
    -------
    RouterMap

    Raises
    ------
    InvalidInputError
        If there is no trace, one has no states, or they do not fit each other or the model.

    Notes
    -----
    Normal equations in float64: O(N F (F + L E)) time and F (F + L E) numbers for F = H + H_d + 1
    inputs.
    """
    if not ridge > 0.0:
        raise InvalidInputError(f"ridge must be positive, got {ridge!r}")
    config = model.config
    state_size = _checked_traces(traces, config)
    embed = model.get_input_embeddings().weight.detach()
    n_layers, n_experts = traces[0].n_layers, traces[0].n_experts
    width = embed.shape[1] + state_size + 1
    gram = torch.zeros(width, width, dtype=torch.float64, device="cpu")
    moment = torch.zeros(width, n_layers * n_experts, dtype=torch.float64, device="cpu")
    total, done = sum(trace.n_nodes for trace in traces), 0
    for trace in traces:
        for at in range(0, trace.n_nodes, _BLOCK):
            inputs = _inputs(trace, slice(at, at + _BLOCK), embed)
            gram += inputs.T @ inputs
            moment += inputs.T @ _used(trace, slice(at, at + _BLOCK))
            done += len(inputs)
            if progress is not None:
                progress(done, total)
    penalty = torch.full((width,), ridge * total, dtype=torch.float64, device="cpu")
    penalty[-1] = 0.0
    solved = torch.linalg.solve(gram + torch.diag(penalty), moment)
    weights = solved.float().view(width, n_layers, n_experts)
    by_input = weights.split([embed.shape[1], state_size, 1])
    return RouterMap(
        embedding_weight=by_input[0].clone(),
        state_weight=by_input[1].clone(),
        constant=by_input[2][0].clone(),
        top_k=int(family_for(config).top_k(config)),
        target=str(config.model_type),
        nodes=total,
        ridge=float(ridge),
    )


def _inputs(trace: Trace, part: slice, embed: Tensor) -> Tensor:
    """Return embedding, state and 1 of some nodes, float64 of shape (n, F)."""
    assert trace.states is not None  # _checked_traces
    tokens = torch.from_numpy(trace.token[part].astype(np.int64)).to(embed.device)
    embedded = functional.embedding(tokens, embed).float().cpu()
    states = torch.from_numpy(trace.states[part].astype(np.float32))
    one = torch.ones(len(states), 1, dtype=states.dtype, device=states.device)
    return torch.cat([unit(embedded), unit(states), one], dim=1).double()


def _used(trace: Trace, part: slice) -> Tensor:
    """Return 1 for each expert that a node uses, float64 of shape (n, L E)."""
    ids = torch.from_numpy(trace.experts[part].astype(np.int64))
    # Padding falls into a column of its own.
    used = torch.zeros(*ids.shape[:2], trace.n_experts + 1, dtype=torch.float64, device="cpu")
    used.scatter_(2, torch.where(ids < 0, trace.n_experts, ids), 1.0)
    return used[:, :, :-1].flatten(1)


def _checked_traces(traces: Sequence[Trace], config: Any) -> int:
    """Return the size of the states."""
    if not traces:
        raise InvalidInputError("no trace to fit a router map to; give at least one")
    family = family_for(config)
    shape = (len(family.moe_layers(config)), family.n_experts(config), family.top_k(config))
    size = None
    for trace in traces:
        if trace.states is None:
            raise InvalidInputError(
                f"trace {trace.name!r} has no drafter states: record it with specfit trace "
                "--states, and with a drafter that has them"
            )
        have = (trace.n_layers, trace.n_experts, trace.experts.shape[2])
        if have != shape:
            raise InvalidInputError(
                f"trace {trace.name!r} is of {have[0]} layers of {have[1]} experts, top-{have[2]}; "
                f"the model has {shape[0]} of {shape[1]}, top-{shape[2]}"
            )
        if int(trace.token.max()) >= config.vocab_size:
            raise InvalidInputError(
                f"trace {trace.name!r} holds token {trace.token.max()}, the model's vocabulary "
                f"ends at {config.vocab_size - 1}: it is of another model"
            )
        if size is not None and trace.states.shape[1] != size:
            raise InvalidInputError(
                f"trace {trace.name!r} has states of size {trace.states.shape[1]}, the first "
                f"of {size}; they are of different drafters"
            )
        size = trace.states.shape[1]
    assert size is not None  # there is a trace
    return int(size)
