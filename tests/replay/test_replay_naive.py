"""replay() against an independent naive implementation, on generated traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naive_replay import fixed_choice, naive_replay
from random_trace import random_trace

from specfit_opt.policies import Choice, DraftView, Outcome, Policy, Ratio, make_policy
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import WARMUP, Overlap, RecordedView, ReplayResult, replay

TIMES: dict[str, Any] = {"bandwidth": 3e9, "fixed_time": 0.01, "draft_time": 0.0007}


def _compare(result: ReplayResult, want: dict[str, Any]) -> None:
    assert result.tokens == want["tokens"]
    assert result.passes == want["passes"]
    assert result.misses == want["misses"]
    assert result.hits == want["hits"]
    assert result.bytes == pytest.approx(want["bytes"] + want["wasted"], abs=1)
    assert result.wasted_prefetch_bytes == pytest.approx(want["wasted"], abs=1)
    assert result.hidden_seconds == pytest.approx(want["hidden"], rel=1e-9)
    assert result.nodes == want["nodes"]
    assert result.levels == want["levels"]
    assert result.predicted_tokens == pytest.approx(want["predicted"], rel=1e-12)
    assert result.seconds == pytest.approx(want["seconds"], rel=1e-9)


@pytest.mark.parametrize("seed", range(25))
def test_fixed_policies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trace = random_trace(rng)
    assert trace.expert_bytes is not None
    repeat = int(rng.integers(1, 4))
    warmup = int(rng.choice([12, 0, 5]))
    table = [0.0, *np.cumsum(rng.random(14) * 1e-3).tolist()]
    slots = [0, 1, 3, 8, 9]
    policies = ["ar", "chain-1", "chain-2", "eagle-1", "eagle-4", "eagle-9"]
    profile = HardwareProfile(name="test", node_time=tuple(table), **TIMES)
    results = replay(
        trace,
        policies=policies,
        profile=profile,
        cache=slots,
        cache_policy="lru",
        layer_repeat=repeat,
        warmup=warmup,
    )
    assert [(r.slots, r.policy) for r in results] == [(s, p) for s in slots for p in policies]
    for r in results:
        _compare(
            r,
            naive_replay(
                trace,
                fixed_choice(r.policy),
                slots=r.slots,
                node_time=table.__getitem__,
                expert_bytes=trace.expert_bytes.tolist(),
                layer_repeat=repeat,
                warmup=warmup,
                **TIMES,
            ),
        )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shares", [(0.5, 0.9, 1.0), (1.0, 0.6, 0.3), (0.8, 1.0, 20.0)])
def test_overlap(seed: int, shares: tuple[float, float, float]) -> None:
    trace = random_trace(np.random.default_rng(seed))
    assert trace.expert_bytes is not None
    profile = HardwareProfile(name="test", node_time=1e-4, **TIMES)
    (result,) = replay(
        trace,
        policies=["eagle-4"],
        profile=profile,
        cache=3,
        cache_policy="lru",
        overlap=Overlap(*shares),
    )
    want = naive_replay(
        trace,
        fixed_choice("eagle-4"),
        slots=3,
        node_time=lambda n: 1e-4 * n,
        expert_bytes=trace.expert_bytes.tolist(),
        overlap=shares,
        **TIMES,
    )
    assert want["hidden"] > 0.0
    _compare(result, want)


@pytest.mark.parametrize("seed", range(5))
def test_all_experts_resident(seed: int) -> None:
    trace = random_trace(np.random.default_rng(seed), sizes=False)
    profile = HardwareProfile(
        name="hbm",
        fixed_time=0.003,
        draft_time=0.001,
        node_time=1e-5,
        resident_bandwidth=4e12,
        experts_resident=True,
    )
    (result,) = replay(trace, policies=["eagle-5"], profile=profile, expert_bytes=8_000_000)
    assert result.misses == 0
    assert result.bytes == 0
    assert result.slots == trace.n_experts
    _compare(
        result,
        naive_replay(
            trace,
            fixed_choice("eagle-5"),
            slots=trace.n_experts,
            bandwidth=1.0,
            fixed_time=0.003,
            draft_time=0.001,
            node_time=lambda n: 1e-5 * n,
            expert_bytes=[8_000_000] * trace.n_layers,
            resident_time=8_000_000 / 4e12,
            all_resident=True,
        ),
    )


class Recorder(Policy):
    """Another policy, and a note of everything that it chose and was told."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.name = inner.name
        self.priced, self.predicts = inner.priced, inner.predicts
        self.told: list[tuple[list[int], int]] = []
        self.predictions = 0
        self.expected = 0.0
        self.rates: list[float | None] = []
        self._plain = 0

    def start(self) -> None:
        self.inner.start()
        self._plain = WARMUP

    def choose(self, view: DraftView) -> Choice:
        assert isinstance(view, RecordedView)
        choice = self.inner.choose(view)
        self.rates.append(view.rate)
        if self._plain:
            self._plain -= 1
            assert choice.nodes.tolist() == [0]
        else:
            # As the recording numbers them.
            self.told.append((view.nodes[choice.nodes].tolist(), view.levels))
            self.predictions += view.predictions
            assert choice.expected_tokens is not None
            self.expected += choice.expected_tokens
        return choice

    def observe(self, outcome: Outcome) -> None:
        self.inner.observe(outcome)


@pytest.mark.parametrize(
    "inner",
    [
        *map(make_policy, ["pool-exact", "pool-greedy", "evict", "ecospec", "ratio", "specfit"]),
        Ratio(stop="expected"),
        Ratio(objective="surplus"),
    ],
    ids=lambda policy: policy.name,
)
def test_totals_follow_from_what_a_policy_chose(inner: Policy) -> None:
    trace = random_trace(np.random.default_rng(7), prompts=3)
    assert trace.expert_bytes is not None
    recorder = Recorder(inner)
    profile = HardwareProfile(name="test", node_time=1e-4, **TIMES)
    (result,) = replay(trace, policies=[recorder], profile=profile, cache=4, cache_policy="lru")
    told = iter(recorder.told)
    want = naive_replay(
        trace,
        lambda at, *pool: next(told),
        slots=4,
        node_time=lambda n: 1e-4 * n,
        expert_bytes=trace.expert_bytes.tolist(),
        **TIMES,
    )
    assert next(told, None) is None
    # Beside the machine, what the policy does is paid for.
    time = profile.policy_time[inner.name.partition("-")[0]]
    assert result.learning_seconds == pytest.approx(time.cycle * result.passes)
    assert result.search_seconds == pytest.approx(time.level * result.levels)
    assert result.prediction_seconds == pytest.approx(
        profile.prediction_time * recorder.predictions
    )
    assert bool(recorder.predictions) == inner.predicts
    want["seconds"] += result.overhead * result.seconds
    _compare(result, want)
    assert result.expected_tokens == pytest.approx(recorder.expected)
    # The rate that a surplus is maximised at is that of the text so far.
    assert sum(rate is None for rate in recorder.rates) == len(trace.prompts)
    assert all(rate is None or rate > 0.0 for rate in recorder.rates)
