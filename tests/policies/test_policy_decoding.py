"""Whole decodes of recorded texts on simulated machines: never slower, and faster where it pays.

The drafter of these recordings is weak (a third of its first guesses are accepted), and routing is
predicted from what the decode itself has seen.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specfit_opt import CostModel
from specfit_opt.data import example_trace
from specfit_opt.files import Trace, load_trace
from specfit_opt.policies import Outcome, Policy, SpecFitPolicy, make_policy
from specfit_opt.replay import RecordedDecode, ReplayedCycle, SimulatedMachine
from specfit_runtime.predictors import make_predictor

FIXED = ("chain-1", "chain-2", "chain-4", "eagle-8")

#: The time of loading all 32 experts of a token, in passes without loading.
COLD = (0.5, 5.0, 20.0)


def machine(
    slots: int,
    cold: float,
    level_time: float,
    node_time: float = 0.02,
    jitter: float = 0.0,
    cache_policy: str = "lru",
) -> SimulatedMachine:
    return SimulatedMachine(
        cost_model=CostModel(1.0, node_time, np.full(8, cold / 32)),
        draft_time=level_time,
        slots=slots,
        cache_policy=cache_policy,
        jitter=jitter,
    )


def decode(
    trace: Trace, policy: str | Policy, on: SimulatedMachine, warmup: int = 12
) -> list[ReplayedCycle]:
    run = RecordedDecode(
        trace, make_policy(policy), on, make_predictor("frequency"), warmup=warmup
    )
    return [cycle for first, end in trace.prompts for cycle in run.text(first, end)]


def speed(cycles: list[ReplayedCycle]) -> float:
    return sum(c.committed for c in cycles) / sum(c.seconds for c in cycles)


@pytest.mark.parametrize("slots", [8, 16, 32])
@pytest.mark.parametrize("cold", COLD)
@pytest.mark.parametrize("level_time", [0.02, 0.3])
@pytest.mark.parametrize("cache_policy", ["lru", "lfu"])
def test_specfit_is_as_fast_as_plain_decoding(
    slots: int, cold: float, level_time: float, cache_policy: str
) -> None:
    on = machine(slots, cold, level_time, cache_policy=cache_policy)
    trace = example_trace()
    # 132 tokens from nothing learned: one and a half passes may be lost, one more in a second try,
    # and each by what a single cycle loses beyond that. A pass on a cold cache is long.
    assert speed(decode(trace, "specfit", on)) >= 0.92 * speed(decode(trace, "ar", on))


@pytest.mark.parametrize(
    ("slots", "cold", "level_time"), [(8, 0.5, 0.02), (32, 0.5, 0.02), (32, 0.5, 0.3)]
)
def test_specfit_gains_where_speculation_pays(slots: int, cold: float, level_time: float) -> None:
    on = machine(slots, cold, level_time)
    trace = example_trace()
    best = max(speed(decode(trace, name, on)) for name in FIXED)
    assert best > 1.1 * speed(decode(trace, "ar", on))
    assert speed(decode(trace, "specfit", on)) >= 0.93 * best


@pytest.mark.parametrize("cost", ["level", "node"])
def test_specfit_does_not_draft_where_it_cannot_pay(cost: str) -> None:
    on = machine(
        16,
        1.6,
        level_time=2.0 if cost == "level" else 0.05,
        node_time=2.0 if cost == "node" else 0.02,
    )
    trace = example_trace()
    cycles = decode(trace, "specfit", on)
    if cost == "level":
        assert sum(c.levels > 0 for c in cycles) <= 0.05 * len(cycles)
    assert speed(cycles) >= 0.98 * speed(decode(trace, "ar", on))


def test_noise_in_the_time_of_a_pass_does_not_mislead_it() -> None:
    trace = example_trace()
    for cold, at_least in ((20.0, 0.97), (0.5, 1.2)):
        on = machine(32 if cold < 1 else 8, cold, 0.02, jitter=0.3)
        plain = speed(decode(trace, "ar", on))
        assert speed(decode(trace, "specfit", on)) >= at_least * plain


def test_the_guard_knows_what_plain_decoding_takes() -> None:
    on = machine(16, 5.0, 0.02)
    trace = example_trace()
    recorded = RecordedDecode(trace, SpecFitPolicy(), on, make_predictor("frequency"))
    told: list[float] = []
    running = recorded.policy
    assert isinstance(running, SpecFitPolicy)
    assert running.guard is not None
    budget = running.guard.budget
    enter = budget.enter

    def watched(gained: float, plain: float, speculated: bool) -> None:
        told.append(plain)
        enter(gained, plain, speculated)

    budget.enter = watched  # type: ignore[method-assign]
    observe, tokens = running.observe, []

    def observed(outcome: Outcome) -> None:
        tokens.append(len(outcome.accepted))
        observe(outcome)

    running.observe = observed  # type: ignore[method-assign]
    cycles = [cycle for first, end in trace.prompts for cycle in recorded.text(first, end)]
    assert sum(c.levels > 0 for c in cycles) > 20
    # Its shadow starts each text from the real cache, hence the slack.
    plain = sum(c.seconds for c in decode(trace, "ar", on, warmup=0))
    assert np.dot(told, tokens) == pytest.approx(plain, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [8, 16, 32])
@pytest.mark.parametrize("cold", COLD)
@pytest.mark.parametrize("level_time", [0.02, 0.3])
def test_longer_texts(shared: Path, slots: int, cold: float, level_time: float) -> None:
    trace = load_trace(shared / "traces" / "small" / "qwen3moe-8x64-draft-lm.npz")
    on = machine(slots, cold, level_time)
    plain = speed(decode(trace, "ar", on))
    best = max(speed(decode(trace, name, on)) for name in FIXED)
    specfit = speed(decode(trace, "specfit", on))
    # 612 tokens in twelve texts. Where drafting a level takes 0.3 passes, nothing pays, and each of
    # some five tries loses up to what the guard allows, in passes on a cold cache.
    assert specfit >= 0.975 * plain
    assert specfit >= 0.97 * best
