"""The figures of a routing predictor on recorded decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit_opt.checks import Whole
from specfit_opt.files import Trace
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import DEFAULT_CACHE, WARMUP, ReplaySetting, SimulatedMachine
from specfit_opt.replay.replay import machine_of
from specfit_opt.routing_predictor import RoutingPredictor

from ..predictors import make_predictor
from .accuracy import UnionError, node_recall, recall_by_depth, union_errors
from .decisions import DecisionQuality, decision_quality
from .predictions import predict_trace


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictorEvaluation:
    """The figures of a predictor on a trace.

    Attributes
    ----------
    trace, predictor : str
    nodes, accepted_nodes : ndarray of int64, shape (D + 1,)
        Nodes of each depth; those of them on the target's greedy path.
    recall, accepted_recall : ndarray of float64, shape (D + 1, L)
        Mean share of a node's true experts that were predicted, by depth and layer; NaN without a
        node.
    unions : tuple of UnionError
    decisions : tuple of DecisionQuality
        By machine, then by cache size.
    predict_seconds : tuple of float
        Median time of predicting the nodes of each depth of one position.
    """

    trace: str
    predictor: str
    nodes: NDArray[np.int64]
    accepted_nodes: NDArray[np.int64]
    recall: NDArray[np.float64]
    accepted_recall: NDArray[np.float64]
    unions: tuple[UnionError, ...]
    decisions: tuple[DecisionQuality, ...]
    predict_seconds: tuple[float, ...]

    @property
    def recall_by_depth(self) -> NDArray[np.float64]:
        """Mean over the layers, shape (D + 1,)."""
        means: NDArray[np.float64] = self.recall.mean(axis=1)
        return means

    @property
    def recall_by_layer(self) -> NDArray[np.float64]:
        """Mean over the drafted nodes, the root excluded, shape (L,); NaN if none was drafted."""
        return _over_depths(self.recall, self.nodes)

    @property
    def accepted_recall_by_layer(self) -> NDArray[np.float64]:
        """Mean over the accepted nodes, the root excluded, shape (L,); NaN if there is none."""
        return _over_depths(self.accepted_recall, self.accepted_nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return figures and means as plain Python values and arrays, ready for JSON."""
        data: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        data["unions"] = [dataclasses.asdict(union) for union in self.unions]
        data["decisions"] = [dataclasses.asdict(decision) for decision in self.decisions]
        for name in ("recall_by_depth", "recall_by_layer", "accepted_recall_by_layer"):
            data[name] = getattr(self, name)
        return data


def evaluate_predictor(
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
) -> PredictorEvaluation:
    """Hold a predictor against the recorded routing, and its decisions against the best ones.

    Parameters
    ----------
    trace : Trace
        With ``states`` for predictors that read them.
    predictor : str or RoutingPredictor
        What an object has learned before, it knows.
    profiles : iterable of str, path or HardwareProfile
        The machines whose prices the decisions are made at.
    cache : sequence of int or str
        Cache sizes, see :func:`specfit_opt.caches.slots_of`.
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
    PredictorEvaluation

    Raises
    ------
    InvalidInputError
        If a name, a size or an option is not understood, ``expert_bytes`` is known from nowhere, or
        the predictor does not fit the trace.

    Examples
    --------
    >>> from specfit_opt.data import example_trace
    >>> from specfit_runtime.predictor_evaluation import evaluate_predictor
    >>> result = evaluate_predictor(
    ...     example_trace(), "oracle", cache=["50%"], expert_bytes=9_437_184, layer_repeat=6
    ... )
    >>> float(result.recall_by_depth[1]), round(result.decisions[0].share, 6)
    (1.0, 1.0)
    """
    made = make_predictor(predictor)
    positions = Whole()(warmup, "warmup")
    cells: list[tuple[str, SimulatedMachine]] = []
    # Decisions are judged by the machine's time: what choosing takes is left out.
    free: dict[str, Any] = {"policy_time": {}, "prediction_time": 0.0}
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
            (setting.machine.name, dataclasses.replace(machine_of(trace, setting, slots), **free))
            for slots in setting.slots
        ]
    total = trace.n_cycles * (1 + len(cells))

    def advance(done: int, of: int) -> None:
        if progress is not None:
            progress(done, total)

    decisions: list[DecisionQuality] = []
    for machine_name, machine in cells:
        decisions.append(decision_quality(trace, made, machine, machine_name, positions))
        advance(trace.n_cycles * len(decisions), total)
    before = len(decisions) * trace.n_cycles
    # The decisions were made by copies: only here the predictor learns.
    predicted = predict_trace(trace, made, progress=lambda done, of: advance(before + done, of))
    recall = node_recall(predicted.experts, trace.experts)
    levels, right = trace.max_depth, trace.accepted
    return PredictorEvaluation(
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


def _over_depths(recall: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    drafted = np.flatnonzero(count[1:]) + 1
    if not drafted.size:
        return np.full(recall.shape[1], np.nan)
    return np.average(recall[drafted], axis=0, weights=count[drafted])
