"""Whole decodes of recorded texts on simulated machines: never slower, and faster where it pays.

The drafter of these recordings is weak (a third of its first guesses are accepted), and routing is
predicted from what the decode itself has seen.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_decode import Machine, SimulatedDecode, Text

from specfit_opt.data import example_trace
from specfit_opt.files import Trace, load_trace
from specfit_runtime.policies import Policy, SpecFitPolicy, make_policy

FIXED = ("chain-1", "chain-2", "chain-4", "eagle-8")

#: The time of loading all 32 experts of a token, in passes without loading.
COLD = (0.5, 5.0, 20.0)


def machine(slots: int, cold: float, level_time: float) -> Machine:
    return Machine(slots=slots, expert_time=cold / 32, level_time=level_time)


def decode(trace: Trace, policy: str | Policy, on: Machine, **options: object) -> list[Text]:
    return SimulatedDecode(trace, make_policy(policy), on, **options).run()  # type: ignore[arg-type]


def speed(texts: list[Text]) -> float:
    return sum(t.tokens for t in texts) / sum(t.seconds for t in texts)


@pytest.mark.parametrize("slots", [8, 16, 32])
@pytest.mark.parametrize("cold", COLD)
@pytest.mark.parametrize("level_time", [0.02, 0.3])
def test_specfit_is_as_fast_as_plain_decoding(
    slots: int, cold: float, level_time: float
) -> None:
    on = machine(slots, cold, level_time)
    trace = example_trace()
    # 132 tokens from nothing learned: what may be lost while learning is 2 % of that.
    assert speed(decode(trace, "specfit", on)) >= 0.975 * speed(decode(trace, "ar", on))


@pytest.mark.parametrize(
    ("slots", "cold", "level_time"), [(8, 0.5, 0.02), (32, 0.5, 0.02), (32, 0.5, 0.3)]
)
def test_specfit_gains_where_speculation_pays(slots: int, cold: float, level_time: float) -> None:
    on = machine(slots, cold, level_time)
    trace = example_trace()
    best = max(speed(decode(trace, name, on)) for name in FIXED)
    assert best > 1.1 * speed(decode(trace, "ar", on))
    assert speed(decode(trace, "specfit", on)) >= 0.97 * best


@pytest.mark.parametrize("cost", ["level", "node"])
def test_specfit_does_not_draft_where_it_cannot_pay(cost: str) -> None:
    on = Machine(
        slots=16,
        expert_time=0.05,
        level_time=2.0 if cost == "level" else 0.05,
        node_time=2.0 if cost == "node" else 0.02,
    )
    trace = example_trace()
    texts = decode(trace, "specfit", on)
    assert sum(t.drafted_cycles for t in texts) <= 0.05 * sum(t.cycles for t in texts)
    assert speed(texts) >= 0.98 * speed(decode(trace, "ar", on))


def test_noise_in_the_time_of_a_pass_does_not_mislead_it() -> None:
    trace = example_trace()
    for cold, at_least in ((20.0, 0.97), (0.5, 1.2)):
        on = machine(32 if cold < 1 else 8, cold, 0.02)
        plain = speed(decode(trace, "ar", on, jitter=0.3))
        assert speed(decode(trace, "specfit", on, jitter=0.3)) >= at_least * plain


def test_the_guard_knows_what_plain_decoding_takes() -> None:
    on = machine(16, 5.0, 0.02)
    trace = example_trace()
    policy = SpecFitPolicy()
    simulated = SimulatedDecode(trace, policy, on)
    told: list[float] = []
    running = simulated.policy
    assert isinstance(running, SpecFitPolicy)
    budget = running._guard.budget
    settle = budget.settle

    def watched(plain_seconds: float, tokens: int, gained: float, speculated: bool) -> None:
        told.append(plain_seconds)
        settle(plain_seconds, tokens, gained, speculated)

    budget.settle = watched  # type: ignore[method-assign]
    texts = simulated.run()
    assert sum(t.drafted_cycles for t in texts) > 20
    # Its shadow starts each text from the real cache, hence the slack.
    plain = sum(t.seconds for t in decode(trace, "ar", on))
    assert sum(told) == pytest.approx(plain, rel=0.02)


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
    assert specfit >= 0.99 * plain
    assert specfit >= 0.97 * best
