"""A predictor run over a recording, level by level, as a decode runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specfit_opt.files import Trace
from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor

from ..errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a predictor said of every node of a trace.

    Attributes
    ----------
    experts : ndarray of int, shape (N, L, k)
        -1 pads.
    seconds : tuple of float
        Median time of predicting the nodes of depth 0, 1, ... of one position.
    """

    experts: NDArray[np.integer]
    seconds: tuple[float, ...]


def predict_trace(
    trace: Trace,
    predictor: RoutingPredictor,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Predictions:
    """Predict every node of a trace from what was known before its position was verified.

    At each position the nodes are asked for level by level; then the predictor observes the true
    routing of the position's root, which is what plain decoding would have run there. The root's
    own prediction comes before that.

    Parameters
    ----------
    trace : Trace
        With ``states`` for predictors that read them.
    predictor : RoutingPredictor
        It goes on learning from what it knows already.
    progress : callable, optional
        Called as ``progress(done, total)`` after every position.

    Raises
    ------
    InvalidInputError
        If the predictor is for another shape, or returns another one than it should.

    Notes
    -----
    A recording does not hold the prompts' own routing, which a decode observes first, nor does it
    teach here what rejected nodes used.
    """
    top_k = trace.experts.shape[2]
    found = np.empty_like(trace.experts)
    seconds: list[list[float]] = [[] for _ in range(trace.max_depth + 1)]
    for first, end in trace.prompts:
        predictor.start(trace.n_layers, trace.n_experts, top_k)
        for c in range(first, end):
            start, stop = trace.cycle_start[c : c + 2].tolist()
            depth = trace.depth[start:stop]
            for level in range(int(depth.max()) + 1):
                rows = start + np.flatnonzero(depth == level)
                nodes = _nodes(trace, rows)
                begin = perf_counter()
                experts = predictor.predict(nodes)
                seconds[level].append(perf_counter() - begin)
                if experts.shape != (len(rows), trace.n_layers, top_k):
                    raise InvalidInputError(
                        f"predictor {predictor.name} returned shape {experts.shape} for "
                        f"{len(rows)} nodes of {trace.n_layers} layers, top-{top_k}"
                    )
                found[rows] = experts
            predictor.observe(trace.token[start : start + 1], trace.experts[start : start + 1])
            if progress is not None:
                progress(c + 1, trace.n_cycles)
    return Predictions(found, tuple(float(np.median(times)) for times in seconds))


def teach(predictor: RoutingPredictor, trace: Trace) -> None:
    """Let a predictor observe the committed tokens of a trace, text by text.

    Raises
    ------
    InvalidInputError
        If the predictor is for another shape.
    """
    for first, end in trace.prompts:
        predictor.start(trace.n_layers, trace.n_experts, trace.experts.shape[2])
        roots = trace.cycle_start[first:end]
        predictor.observe(trace.token[roots], trace.experts[roots])


def _nodes(trace: Trace, rows: NDArray[np.int64]) -> DraftNodes:
    return DraftNodes(
        token=trace.token[rows].astype(np.int64),
        parent=trace.parent[rows].astype(np.int64),
        depth=trace.depth[rows].astype(np.int64),
        prob=trace.path_prob[rows].astype(np.float64),
        truth=trace.experts[rows],
        states=None if trace.states is None else trace.states[rows],
    )
