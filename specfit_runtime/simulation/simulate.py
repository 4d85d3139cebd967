"""Replay of traces through the runtime's policies, predictors and corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike

from specfit_opt import CostModel
from specfit_opt.caches import DEFAULT_CACHE_RULE
from specfit_opt.files import Trace
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import WARMUP, ReplayResult, ReplaySetting
from specfit_opt.replay.walk import check_warmup

from ..acceptance import AcceptanceCalibrator
from ..errors import InvalidInputError
from ..policies import Policy, make_policy
from ..predictors import RoutingPredictor, make_predictor
from .simulated_decode import Machine, SimulatedCycle, SimulatedDecode


def simulate(
    traces: Trace | Sequence[Trace],
    *,
    policies: Iterable[str | Policy] = ("specfit",),
    predictor: str | Callable[[], RoutingPredictor] = "oracle",
    profile: str | PathLike[str] | HardwareProfile = "pcie4",
    cache: int | str | Sequence[int | str] | None = None,
    expert_bytes: ArrayLike | None = None,
    layer_repeat: int | None = None,
    cache_policy: str = DEFAULT_CACHE_RULE,
    warmup: int = WARMUP,
    calibrator: Callable[[], AcceptanceCalibrator] = AcceptanceCalibrator,
    progress: Callable[[int, int], None] | None = None,
) -> list[ReplayResult]:
    """Decode recorded texts as the runtime would, on a machine that is only simulated.

    Unlike :func:`specfit_opt.replay.replay`, which gives a policy the true routing and the true
    prices, this runs the policies of a live decode with what they know there: routing as
    predicted, acceptance and prices as learned so far.

    Parameters
    ----------
    traces : Trace or sequence of Trace
        Of one model and drafter. They are decoded one after the other, and what was learned is
        kept; the cache is emptied at the start of each text.
    policies : iterable of str or Policy
        See :func:`~specfit_runtime.policies.make_policy`.
    predictor : str or callable
        See :func:`~specfit_runtime.predictors.make_predictor`, or what returns a new predictor.
        The default, ``"oracle"``, knows the recorded routing.
    profile : str, path or HardwareProfile
        The machine; its experts must not all be resident.
    cache : int or str, or a sequence of them, optional
        Cache sizes, as for :func:`specfit_opt.replay.replay`.
    expert_bytes : int or array_like of int, shape (L,), optional
        Bytes of one expert, per recorded layer; default the trace's, else the profile's.
    layer_repeat : int, optional
        Layers that each recorded one stands for; default the profile's.
    cache_policy : str
        A name of :data:`~specfit_opt.caches.CACHE_RULES` that need not know the future.
    warmup : int
        Positions at the start of each text that are decoded plainly and not counted.
    calibrator : callable
        Returns what learns acceptance.
    progress : callable, optional
        Called as ``progress(done, total)`` after every text, in texts over all combinations.

    Returns
    -------
    list of ReplayResult
        By cache size, then by policy, then by trace.

    Raises
    ------
    InvalidInputError
        If a name, a size or an option is not understood, the traces are of different shapes, the
        profile has no link, or the cache policy must know the future.

    Notes
    -----
    Time is counted as :func:`~specfit_opt.replay.replay` counts it: fixed policies take the same
    in both, but for the path probabilities that they rank by.

    Examples
    --------
    >>> from specfit_opt.data import example_trace
    >>> from specfit_runtime.simulation import simulate
    >>> results = simulate(
    ...     example_trace(), policies=["ar", "specfit"], predictor="frequency", cache="50%",
    ...     expert_bytes=9_437_184, layer_repeat=6,
    ... )
    >>> [(r.policy, r.slots, r.tokens >= 132) for r in results]
    [('ar', 32, True), ('specfit', 32, True)]
    """
    texts = [traces] if isinstance(traces, Trace) else list(traces)
    _check_alike(texts)
    check_warmup(warmup)
    settings = [
        ReplaySetting.of(
            trace,
            profile,
            cache=cache,
            expert_bytes=expert_bytes,
            layer_repeat=layer_repeat,
            cache_policy=cache_policy,
        )
        for trace in texts
    ]
    setting = settings[0]
    if setting.cost.resident_time or setting.machine.experts_resident:
        raise InvalidInputError(
            f"profile {setting.machine.name} charges for resident experts, which the runtime's "
            "policies do not reckon with; simulate a profile with a link, such as pcie4"
        )
    assert setting.cache is not None  # all resident was refused
    if setting.cache.clairvoyant:
        raise InvalidInputError(
            f"cache policy {setting.cache.name} must know all passes beforehand; choose another"
        )
    chosen = [make_policy(policy) for policy in policies]
    done, total = 0, len(setting.slots) * len(chosen) * sum(len(t.prompts) for t in texts)
    results = []
    for slots in setting.slots:
        for policy in chosen:
            decode: SimulatedDecode | None = None
            for trace, here in zip(texts, settings, strict=True):
                machine = _machine(trace, here, slots)
                if decode is None:
                    made = predictor() if callable(predictor) else make_predictor(predictor)
                    decode = SimulatedDecode(
                        trace, policy, machine, made, calibrator=calibrator(), warmup=warmup
                    )
                else:
                    decode.take(trace, machine)
                cycles: list[list[SimulatedCycle]] = []
                for first, end in trace.prompts:
                    cycles.append(decode.text(first, end))
                    done += 1
                    if progress is not None:
                        progress(done, total)
                results.append(_result(trace, policy, here, slots, cycles))
    return results


def _check_alike(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InvalidInputError("no trace was given")
    shapes = {(t.n_layers, t.n_experts, t.experts.shape[2]) for t in traces}
    if len(shapes) > 1:
        raise InvalidInputError(
            "the traces are of different models: (layers, experts, experts per token) are "
            f"{', '.join(map(str, sorted(shapes)))}; simulate each model by itself"
        )


def _machine(trace: Trace, setting: ReplaySetting, slots: int) -> Machine:
    cost = setting.cost
    time = cost.expert_time
    if isinstance(time, float):
        time = np.full(trace.n_layers, time)
    return Machine(
        cost_model=CostModel(cost.fixed_time, cost.node_time, time),
        draft_time=setting.machine.draft_time,
        slots=slots,
        cache_policy=setting.cache_policy,
    )


def _result(
    trace: Trace,
    policy: Policy,
    setting: ReplaySetting,
    slots: int,
    texts: Sequence[Sequence[SimulatedCycle]],
) -> ReplayResult:
    cycles = [cycle for text in texts for cycle in text]
    missed = sum((c.misses for c in cycles), np.zeros(trace.n_layers, dtype=np.int64))
    misses = int(missed.sum())
    compute = sum(c.compute_seconds for c in cycles)
    drafting = sum(c.draft_seconds for c in cycles)
    transfer = sum(c.transfer_seconds for c in cycles)
    return ReplayResult(
        trace=trace.name,
        policy=policy.name,
        objective="",
        profile=setting.machine.name,
        cache_policy=setting.cache_policy,
        slots=slots,
        n_experts=trace.n_experts,
        n_layers=trace.n_layers,
        layer_repeat=setting.layer_repeat,
        prompts=sum(bool(text) for text in texts),
        passes=len(cycles),
        tokens=sum(c.committed for c in cycles),
        predicted_tokens=sum(c.expected_tokens for c in cycles),
        nodes=sum(len(c.choice.nodes) for c in cycles),
        levels=sum(c.levels for c in cycles),
        misses=misses,
        hits=sum(c.used for c in cycles) - misses,
        bytes=round(float(missed @ setting.layer_bytes)),
        seconds=compute + drafting + transfer,
        compute_seconds=compute,
        draft_seconds=drafting,
        transfer_seconds=transfer,
    )
