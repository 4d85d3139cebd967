"""Evaluate a routing predictor on recorded decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike

from specfit_opt.files import Trace
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import DEFAULT_CACHE, WARMUP, ReplaySetting, SimulatedMachine
from specfit_opt.replay.replay import machine_of

from ..predictors import RoutingPredictor, make_predictor
from .decisions import DecisionQuality, decision_quality
from .predictions import predict_trace
from .recall import node_recall, recall_by_depth
from .result import RouterEvaluation
from .unions import union_errors


def evaluate_router(
    trace: Trace,
    predictor: str | RoutingPredictor,
    *,
    profiles: Iterable[str | PathLike[str] | HardwareProfile] = ("pcie4",),
    cache: Sequence[int | str] = DEFAULT_CACHE,
    expert_bytes: ArrayLike | None = None,
    layer_repeat: int | None = None,
    warmup: int = WARMUP,
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RouterEvaluation:
    """Hold a predictor against the recorded routing, and its decisions against the best ones.

    Parameters
    ----------
    trace : Trace
        With ``states`` for predictors that read them.
    predictor : str or RoutingPredictor
        One that reads a model's weights is given as an object that was bound to it. What it has
        learned before, it knows.
    profiles : iterable of str, path or HardwareProfile
        The machines whose prices the decisions are made at.
    cache : sequence of int or str
        Cache sizes, see :func:`specfit_opt.replay.slots_of`.
    expert_bytes : int or array_like of int, shape (L,), optional
        Bytes of one expert, per recorded layer; default the trace's, else the profile's.
    layer_repeat : int, optional
        Layers that each recorded one stands for; default the profile's.
    warmup : int
        Positions at the start of each prompt that are decoded plainly and not counted.
    name : str, optional
        What the predictor is called in the result; default its own name.
    progress : callable, optional
        Called as ``progress(done, total)``, in positions: the trace once, and once for each machine
        and cache size.

    Returns
    -------
    RouterEvaluation

    Raises
    ------
    InvalidInputError
        If a name, a size or an option is not understood, ``expert_bytes`` is known from nowhere, or
        the predictor does not fit the trace.

    Examples
    --------
    >>> from specfit_opt.data import example_trace
    >>> from specfit_runtime.router_evaluation import evaluate_router
    >>> result = evaluate_router(
    ...     example_trace(), "oracle", cache=["50%"], expert_bytes=9_437_184, layer_repeat=6
    ... )
    >>> float(result.recall_by_depth[1]), round(result.decisions[0].share, 6)
    (1.0, 1.0)
    """
    made = make_predictor(predictor)
    cells: list[tuple[str, SimulatedMachine]] = []
    for profile in profiles:
        setting = ReplaySetting.of(
            trace,
            profile,
            cache=cache,
            expert_bytes=expert_bytes,
            layer_repeat=layer_repeat,
            cache_policy="lru",
        )
        cells += [
            (setting.machine.name, machine_of(trace, setting, slots)) for slots in setting.slots
        ]
    total = trace.n_cycles * (1 + len(cells))

    def advance(done: int, of: int) -> None:
        if progress is not None:
            progress(done, total)

    decisions: list[DecisionQuality] = []
    for name_of_machine, machine in cells:
        decisions.append(decision_quality(trace, made, machine, name_of_machine, int(warmup)))
        advance(trace.n_cycles * len(decisions), total)
    before = len(decisions) * trace.n_cycles
    # The decisions were made by copies: only here the predictor learns.
    predicted = predict_trace(trace, made, progress=lambda done, of: advance(before + done, of))
    recall = node_recall(predicted.experts, trace.experts)
    levels, right = trace.max_depth, trace.accepted
    return RouterEvaluation(
        trace=trace.name,
        predictor=made.name if name is None else name,
        nodes=np.bincount(trace.depth, minlength=levels + 1),
        accepted_nodes=np.bincount(trace.depth[right], minlength=levels + 1),
        recall=recall_by_depth(recall, trace.depth, levels),
        accepted_recall=recall_by_depth(recall[right], trace.depth[right], levels),
        unions=union_errors(trace, predicted.experts),
        decisions=tuple(decisions),
        predict_seconds=predicted.seconds,
    )
