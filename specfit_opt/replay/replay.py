"""Replay of recorded decoding under any policy, machine and cache size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike

from ..caches import DEFAULT_CACHE_RULE
from ..checks import Whole
from ..cost import CostModel
from ..errors import InvalidInputError
from ..files import Trace
from ..policies import ADAPTIVE_POLICIES, FIXED_POLICIES, Policy, make_policy
from ..profiles import HardwareProfile
from ..routing_predictor import RoutingPredictor
from .overlap import Overlap
from .recorded_decode import RecordedDecode, RecordedTrees, ReplayedCycle, SimulatedMachine
from .result import PARTS, ReplayResult
from .setting import ReplaySetting

#: Positions at the start of a text that stand for its prompt.
WARMUP = 12


def replay(
    traces: Trace | Sequence[Trace],
    *,
    policies: Iterable[str | Policy] | None = None,
    predictor: Callable[[], RoutingPredictor] | None = None,
    profile: str | PathLike[str] | HardwareProfile = "pcie4",
    cache: int | str | Sequence[int | str] | None = None,
    expert_bytes: ArrayLike | None = None,
    layer_repeat: int | None = None,
    cache_policy: str = DEFAULT_CACHE_RULE,
    warmup: int = WARMUP,
    overlap: Overlap | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[ReplayResult]:
    """Replay recorded decoding under several policies and cache sizes, the cache in the loop.

    At every position the policy drafts a part of the recorded tree and chooses what to verify; the
    pass loads what its union of experts lacks, which changes what later passes pay; and the decode
    goes on as many positions later as the recorded acceptance commits. The policies are those of a
    live decode and know what they know there: acceptance and prices as learned so far, and the
    routing as predicted, or the true one.

    Parameters
    ----------
    traces : Trace or sequence of Trace
        Of one model and drafter. They are decoded one after the other, and what was learned is
        kept; the cache is emptied at the start of each text.
    policies : iterable of str or Policy, optional
        See :func:`specfit_opt.policies.make_policy`; default :func:`default_policies`.
    predictor : callable, optional
        Returns a new predictor of routing for each decode, such as
        ``lambda: make_predictor("frequency")`` of ``specfit_runtime``. None: policies see the
        recorded routing.
    profile : str, path or HardwareProfile
        The machine: a shipped name, a JSON file or an object.
    cache : int or str, or a sequence of them, optional
        Cache sizes, see :func:`~specfit_opt.caches.slots_of`; default 12.5, 25 and 50 % of the
        experts. A profile whose experts are all resident takes none.
    expert_bytes : int or array_like of int, shape (L,), optional
        Bytes of one expert, per recorded layer; default the trace's, else the profile's.
    layer_repeat : int, optional
        Layers that each recorded one stands for; default the profile's. Every expert's bytes and
        time count this many times.
    cache_policy : str
        Name of an entry of ``CACHE_RULES``. Such as know all passes beforehand (``belady``) serve
        fixed policies only: what others choose depends on what is resident, so there is nothing to
        know.
    warmup : int
        Positions at the start of each text that stand for its prompt: they are decoded plainly and
        not counted.
    overlap : Overlap, optional
        What the machine hides of its transfers behind compute; None: nothing.
    progress : callable, optional
        Called as ``progress(done, total)`` after every text, in positions over all combinations.

    Returns
    -------
    list of ReplayResult
        By cache size, then by policy, then by trace.

    Raises
    ------
    InvalidInputError
        If a name, a size or an option is not understood, the traces are of different shapes,
        ``expert_bytes`` is known from nowhere, a policy asks for more than the recorded trees hold,
        or the cache policy does not serve a policy.

    Notes
    -----
    Time of a pass = ``fixed_time`` + ``draft_time`` per drafted level + ``node_time`` of the nodes
    verified + the experts loaded, and resident ones where the profile charges for them. With
    ``overlap``, of the experts loaded only the part that does not hide. A policy that is not fixed
    pays what it does on the host besides: ``policy_time`` of the profile, for each cycle and each
    drafted level, and ``prediction_time`` for each level whose experts it asks, with the recorded
    routing as with a predictor. A pass that reaches past the end of a text counts whole.

    Examples
    --------
    >>> from specfit_opt.data import example_trace
    >>> from specfit_opt.replay import replay
    >>> results = replay(
    ...     example_trace(), policies=["ar", "specfit"], profile="pcie4", cache="50%",
    ...     expert_bytes=9_437_184, layer_repeat=6,
    ... )
    >>> [(r.policy, r.slots, r.tokens >= 132) for r in results]
    [('ar', 32, True), ('specfit', 32, True)]
    """
    texts = [traces] if isinstance(traces, Trace) else list(traces)
    _check_alike(texts)
    warmup = Whole()(warmup, "warmup")
    settings = [
        ReplaySetting.of(
            trace,
            profile,
            cache=cache,
            expert_bytes=expert_bytes,
            layer_repeat=layer_repeat,
            cache_policy=cache_policy,
            overlap=overlap,
        )
        for trace in texts
    ]
    chosen = _policies(policies, texts, settings[0])
    combinations = [(slots, policy) for slots in settings[0].slots for policy in chosen]
    decodes = [
        RecordedDecode(
            texts[0],
            policy,
            machine_of(texts[0], settings[0], slots),
            None if predictor is None else predictor(),
            warmup=warmup,
        )
        for slots, policy in combinations
    ]
    done, total = 0, len(decodes) * sum(trace.n_cycles for trace in texts)
    found: list[list[ReplayResult]] = [[] for _ in decodes]
    for trace, setting in zip(texts, settings, strict=True):
        cycles: list[list[list[ReplayedCycle]]] = [[] for _ in decodes]
        for (slots, _), decode in zip(combinations, decodes, strict=True):
            decode.take(trace, machine_of(trace, setting, slots))
        for first, end in trace.prompts:
            trees = RecordedTrees(trace)
            for own, decode in zip(cycles, decodes, strict=True):
                own.append(decode.text(first, end, trees=trees))
                done += end - first
                if progress is not None:
                    progress(done, total)
        for own, results, (slots, policy) in zip(cycles, found, combinations, strict=True):
            results.append(_result(trace, policy, setting, slots, own))
    return [result for results in found for result in results]


def default_policies(n_levels: int, n_nodes: int) -> list[str]:
    """Return the fixed policies that trees of this depth and size can serve, and the choosers."""
    fixed = [name for name in FIXED_POLICIES if _serves(make_policy(name), n_levels, n_nodes)]
    return [*fixed, *ADAPTIVE_POLICIES]


def _serves(policy: Policy, n_levels: int, n_nodes: int) -> bool:
    return policy.needs_levels <= n_levels and policy.needs_nodes <= n_nodes


def _policies(
    policies: Iterable[str | Policy] | None, traces: Sequence[Trace], setting: ReplaySetting
) -> list[Policy]:
    """Return the policies, each name once, after checking that the replay can serve them."""
    n_levels = min(trace.max_depth for trace in traces)
    n_nodes = min(int(np.diff(trace.cycle_start).max()) for trace in traces)
    if policies is None:
        policies = default_policies(n_levels, n_nodes)
    elif isinstance(policies, (str, Policy)):
        policies = [policies]
    found: dict[str, Policy] = {}
    for item in policies:
        policy = make_policy(item)
        found.setdefault(policy.name, policy)
    if not found:
        raise InvalidInputError("no policy was given; name at least one")
    for policy in found.values():
        if not _serves(policy, n_levels, n_nodes):
            raise InvalidInputError(
                f"policy {policy.name} needs {policy.needs_levels} levels and "
                f"{policy.needs_nodes} nodes, but the recorded trees have at most {n_levels} and "
                f"{n_nodes}; use a smaller one"
            )
        if setting.cache is not None and setting.cache.clairvoyant and not policy.fixed:
            raise InvalidInputError(
                f"cache policy {setting.cache.name} must know all passes beforehand, but what "
                f"policy {policy.name} chooses depends on more than the drafted tree; replay "
                "fixed policies, such as ar, chain-4 or eagle-8"
            )
    return list(found.values())


def _check_alike(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InvalidInputError("no trace was given")
    shapes = {(t.n_layers, t.n_experts, t.experts.shape[2]) for t in traces}
    if len(shapes) > 1:
        raise InvalidInputError(
            "the traces are of different models: (layers, experts, experts per token) are "
            f"{', '.join(map(str, sorted(shapes)))}; replay each model by itself"
        )


def machine_of(trace: Trace, setting: ReplaySetting, slots: int) -> SimulatedMachine:
    """Return the machine of a setting with a cache of so many slots per layer."""
    cost = setting.cost
    time = cost.expert_time
    if isinstance(time, float):
        time = np.full(trace.n_layers, time)
    return SimulatedMachine(
        cost_model=CostModel(cost.fixed_time, cost.node_time, time, cost.resident_time),
        draft_time=setting.machine.draft_time,
        slots=slots,
        cache_policy=DEFAULT_CACHE_RULE if setting.cache is None else setting.cache.name,
        all_resident=setting.cache is None,
        prediction_time=setting.machine.prediction_time,
        policy_time=setting.machine.policy_time,
        overlap=setting.overlap,
    )


def _result(
    trace: Trace,
    policy: Policy,
    setting: ReplaySetting,
    slots: int,
    texts: Sequence[Sequence[ReplayedCycle]],
) -> ReplayResult:
    cycles = [cycle for text in texts for cycle in text]
    missed = sum((c.misses for c in cycles), np.zeros(trace.n_layers, dtype=np.int64))
    wasted = sum((c.wasted for c in cycles), np.zeros(trace.n_layers))
    misses = int(missed.sum())
    parts: dict[str, float] = {}
    for name in (f"{part}_seconds" for part in PARTS):
        parts[name] = sum(getattr(cycle, name) for cycle in cycles)
    p50, p95 = _percentiles(cycles)
    return ReplayResult(
        trace=trace.name,
        policy=policy.name,
        profile=setting.machine.name,
        cache_policy=setting.cache_policy,
        slots=slots,
        n_experts=trace.n_experts,
        n_layers=trace.n_layers,
        layer_repeat=setting.layer_repeat,
        prompts=sum(bool(text) for text in texts),
        passes=len(cycles),
        tokens=sum(c.committed for c in cycles),
        predicted_tokens=sum(c.predicted_tokens for c in cycles),
        expected_tokens=sum(c.expected_tokens for c in cycles),
        nodes=sum(len(c.choice.nodes) for c in cycles),
        levels=sum(c.levels for c in cycles),
        misses=misses,
        hits=sum(c.used for c in cycles) - misses,
        bytes=round(float((missed + wasted) @ setting.layer_bytes)),
        wasted_prefetch_bytes=round(float(wasted @ setting.layer_bytes)),
        seconds=sum(parts.values()),
        hidden_seconds=sum(c.hidden_seconds for c in cycles),
        p50_seconds=p50,
        p95_seconds=p95,
        **parts,
    )


def _percentiles(cycles: Sequence[ReplayedCycle]) -> tuple[float, float]:
    """Return the median and the 95th percentile of the seconds that a token takes."""
    if not cycles:
        return 0.0, 0.0
    committed = [c.committed for c in cycles]
    per_token = np.repeat([c.seconds / c.committed for c in cycles], committed)
    low, high = np.percentile(per_token, (50, 95), method="inverted_cdf")
    return float(low), float(high)
