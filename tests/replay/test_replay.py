"""A replay: options, accounting, what policies it serves, and errors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt.errors import InvalidInputError
from specfit_opt.policies import (
    ADAPTIVE_POLICIES,
    FIXED_POLICIES,
    Choice,
    DraftView,
    Policy,
    make_policy,
)
from specfit_opt.profiles import HardwareProfile, PolicyTime
from specfit_opt.replay import ReplayResult, default_policies, replay

PROFILE = HardwareProfile(
    name="test", bandwidth=2e9, fixed_time=0.02, node_time=1e-4, draft_time=1e-3
)


def _one(seed: int = 0, *, sizes: bool = True, **options: object) -> ReplayResult:
    trace = random_trace(np.random.default_rng(seed), sizes=sizes)
    settings: dict[str, object] = {"policies": "eagle-4", "profile": PROFILE, "cache": 4}
    (result,) = replay(trace, **(settings | options))  # type: ignore[arg-type]
    return result


def test_seconds_are_the_sum_of_their_parts() -> None:
    r = _one()
    assert r.compute_seconds == pytest.approx(0.02 * r.passes + 1e-4 * r.nodes, rel=1e-12)
    assert r.draft_seconds == pytest.approx(1e-3 * r.levels, rel=1e-12)
    assert r.transfer_seconds == pytest.approx(r.bytes / 2e9, rel=1e-12)
    assert r.seconds == r.compute_seconds + r.draft_seconds + r.transfer_seconds
    assert r.overhead == 0.0  # it neither searches nor predicts nor learns


def test_policies_pay_for_what_they_do_by_name() -> None:
    times = {"evict": PolicyTime(3e-3, 2e-3), "specfit": PolicyTime(1e-3, 5e-3)}
    priced = PROFILE.replace(policy_time=times, prediction_time=1e-3)
    paid = _one(policies="evict", profile=priced)
    free = _one(policies="evict", profile=PROFILE.replace(policy_time={}, prediction_time=0.0))
    assert paid.learning_seconds == pytest.approx(3e-3 * paid.passes)
    assert paid.search_seconds == pytest.approx(2e-3 * paid.levels)
    assert paid.prediction_seconds == 0.0  # it asks no experts
    assert 0.0 < paid.overhead == pytest.approx(1.0 - free.seconds / paid.seconds)
    # What has no price of its own pays the most.
    ecospec = _one(policies="ecospec", profile=priced)
    assert ecospec.learning_seconds == pytest.approx(3e-3 * ecospec.passes)
    assert ecospec.search_seconds == pytest.approx(5e-3 * ecospec.levels)
    assert ecospec.prediction_seconds == pytest.approx(1e-3 * ecospec.passes)
    assert _one(profile=priced) == _one(profile=PROFILE)


def test_time_per_token() -> None:
    r = _one(policies="ar", cache="100%")
    assert 0.0 < r.p50_seconds <= r.p95_seconds
    assert r.p50_seconds <= 2.0 * r.seconds / r.tokens
    trace = random_trace(np.random.default_rng(4), prompts=1, positions=13)
    (one,) = replay(trace, policies=["eagle-4"], profile=PROFILE, cache=9)
    assert one.p50_seconds == one.p95_seconds == pytest.approx(one.seconds / one.tokens)


def test_rates_follow_from_totals() -> None:
    r = _one()
    assert r.tokens_per_second == r.tokens / r.seconds
    assert r.tokens_per_pass == r.tokens / r.passes
    assert r.predicted_tokens_per_pass == r.predicted_tokens / r.passes
    assert r.nodes_per_pass == r.nodes / r.passes
    assert r.levels_per_pass == r.levels / r.passes
    assert r.hit_rate == r.hits / (r.hits + r.misses)
    assert r.bytes_per_token == r.bytes / r.tokens
    assert r.cache_share == 4 / 9
    assert (r.trace, r.policy, r.profile, r.cache_policy) == ("random", "eagle-4", "test", "lfu")
    data = json.loads(json.dumps(r.to_dict()))
    assert data["tokens_per_second"] == r.tokens_per_second
    assert data["layer_repeat"] == 1


def test_expert_bytes_from_the_argument_the_trace_or_the_profile() -> None:
    own = random_trace(np.random.default_rng(0)).expert_bytes
    assert own is not None
    sized = PROFILE.replace(expert_bytes=5_000_000)
    assert _one().bytes == _one(expert_bytes=own).bytes == _one(profile=sized).bytes
    given = _one(expert_bytes=7_000_000, profile=sized)
    assert given.bytes == given.misses * 7_000_000
    fallback = _one(sizes=False, profile=sized)
    assert fallback.bytes == fallback.misses * 5_000_000
    with pytest.raises(InvalidInputError, match="expert_bytes is unknown: neither the trace nor"):
        _one(sizes=False)
    with pytest.raises(InvalidInputError, match=r"expert_bytes has shape \(2,\)"):
        _one(expert_bytes=[1, 2])
    with pytest.raises(InvalidInputError, match="per layer, not per expert"):
        _one(expert_bytes=np.full((3, 9), 10))
    with pytest.raises(InvalidInputError, match="must be positive"):
        _one(expert_bytes=0)


def test_layers_that_stand_for_several() -> None:
    once, thrice = _one(), _one(layer_repeat=3)
    # The policy is a fixed one: it does the same, only the experts weigh more.
    assert (thrice.misses, thrice.passes) == (once.misses, once.passes)
    assert thrice.bytes == 3 * once.bytes
    assert thrice.transfer_seconds == pytest.approx(3 * once.transfer_seconds, rel=1e-12)
    assert thrice.layer_repeat == 3
    assert _one(profile=PROFILE.replace(layer_repeat=3)) == thrice
    with pytest.raises(InvalidInputError, match="layer_repeat must be a whole number of at least"):
        _one(layer_repeat=0)


def test_plain_positions_are_not_counted_but_fill_the_cache() -> None:
    trace = random_trace(np.random.default_rng(4), prompts=1, positions=20)
    (all_,) = replay(trace, policies=["ar"], profile=PROFILE, cache=9, warmup=0)
    (late,) = replay(trace, policies=["ar"], profile=PROFILE, cache=9, warmup=19)
    assert (all_.passes, late.passes) == (20, 1)
    assert all_.tokens == 20
    # With room for everything, what the last pass misses was never used before.
    last = trace.cycle(19).experts[0]
    before = [trace.cycle(i).experts[0] for i in range(19)]
    unseen = sum(
        len(set(last[layer].tolist()) - {-1} - {int(e) for b in before for e in b[layer]})
        for layer in range(3)
    )
    assert late.misses == unseen
    with pytest.raises(InvalidInputError, match="warmup must be a whole number of at least 0"):
        replay(trace, policies=["ar"], profile=PROFILE, cache=9, warmup=-1)


def test_a_trace_that_is_all_plain_start() -> None:
    trace = random_trace(np.random.default_rng(4), prompts=1, positions=12)
    (r,) = replay(trace, policies=["ar"], profile=PROFILE, cache=9)
    assert (r.passes, r.tokens, r.prompts, r.seconds) == (0, 0, 0, 0.0)
    assert math.isnan(r.tokens_per_second)
    assert r.to_dict()["tokens_per_second"] is None


def test_every_prompt_starts_with_an_empty_cache() -> None:
    one = random_trace(np.random.default_rng(6), prompts=1, positions=20)
    (alone,) = replay(one, policies=["chain-1"], profile=PROFILE, cache=9)
    twice = type(one)(
        cycle_start=np.concatenate([one.cycle_start, one.cycle_start[1:] + one.n_nodes]),
        prompt=np.repeat([0, 1], one.n_cycles),
        **{name: np.tile(getattr(one, name), 2) for name in ("position", "parent", "token")},
        **{name: np.tile(getattr(one, name), 2) for name in ("path_prob", "depth", "accepted")},
        experts=np.concatenate([one.experts, one.experts]),
        n_experts=one.n_experts,
        expert_bytes=one.expert_bytes,
    )
    (both,) = replay(twice, policies=["chain-1"], profile=PROFILE, cache=9)
    for name in ("prompts", "tokens", "passes", "misses", "hits", "bytes", "nodes"):
        assert getattr(both, name) == 2 * getattr(alone, name)


def test_sizes_and_policies_do_not_disturb_each_other() -> None:
    trace = random_trace(np.random.default_rng(8), prompts=3)
    names = ["ar", "pool-exact", "ratio", "specfit"]
    together = replay(trace, policies=names, profile=PROFILE, cache=[2, "50%", 4])
    assert [r.slots for r in together] == [2] * 4 + [4] * 4  # 50% of 9 is 4, named twice
    apart = [
        result
        for slots in (2, 4)
        for name in names
        for result in replay(trace, policies=[name], profile=PROFILE, cache=slots)
    ]
    assert together == apart


def test_default_cache_and_policies() -> None:
    trace = random_trace(np.random.default_rng(8), prompts=1, n_experts=16, max_nodes=9)
    results = replay(trace)
    assert sorted({r.slots for r in results}) == [2, 4, 8]
    assert {r.profile for r in results} == {"pcie4"}
    assert {"ar", "eagle-8", *ADAPTIVE_POLICIES} <= {r.policy for r in results}


def test_default_policies_fit_the_trees() -> None:
    assert set(FIXED_POLICIES) <= set(default_policies(6, 85))
    small = default_policies(2, 10)
    assert small == ["ar", "chain-1", "chain-2", "eagle-8", *ADAPTIVE_POLICIES]
    for name in small:
        policy = make_policy(name)
        assert policy.needs_levels <= 2
        assert policy.needs_nodes <= 10


def test_fixed_policies_that_the_trees_cannot_serve() -> None:
    trace = random_trace(np.random.default_rng(1), max_nodes=6)
    for name, needs in (("chain-6", "6 levels and 1 nodes"), ("eagle-7", "0 levels and 7 nodes")):
        with pytest.raises(InvalidInputError, match=f"policy {name} needs {needs}, but the rec"):
            replay(trace, policies=[name], profile=PROFILE, cache=4)


def test_a_policy_named_twice_is_replayed_once() -> None:
    trace = random_trace(np.random.default_rng(8))
    names = ["ar", "chain", "ar", make_policy("chain-4")]
    results = replay(trace, policies=names, profile=PROFILE, cache=4)
    assert [r.policy for r in results] == ["ar", "chain-4"]


def test_a_policy_of_the_users_own_is_replayed() -> None:
    class Widest(Policy):
        """All children of the root."""

        name = "widest"
        priced = predicts = False

        def choose(self, view: DraftView) -> Choice:
            view.grow(100, 1)
            return Choice(np.arange(len(view.parent)))

    trace = random_trace(np.random.default_rng(8))
    (result,) = replay(trace, policies=[Widest()], profile=PROFILE, cache=4, warmup=0)
    assert result.policy == "widest"
    assert result.levels <= result.passes < result.nodes
    # A pass commits the root's token and, where the target took a child, that one's.
    assert result.passes < result.tokens <= 2 * result.passes


@pytest.mark.parametrize("policy", [make_policy("ratio", stop="expected"), make_policy("specfit")])
def test_a_replay_starts_without_memory(policy: Policy) -> None:
    trace = random_trace(np.random.default_rng(2), prompts=3)
    first = replay(trace, policies=[policy], profile=PROFILE, cache=[3, 6])
    assert replay(trace, policies=[policy], profile=PROFILE, cache=[3, 6]) == first
    assert replay(trace, policies=[policy], profile=PROFILE, cache=[6]) == first[1:]


def test_a_larger_cache_never_misses_more_in_plain_decoding() -> None:
    # LRU holds what a smaller LRU holds, so this is exact; every pass uses at most 3 per layer.
    trace = random_trace(np.random.default_rng(9), prompts=2)
    results = replay(trace, policies=["ar"], profile=PROFILE, cache=[3, 4, 5, 6, 7, 8, 9])
    misses = [r.misses for r in results]
    assert misses == sorted(misses, reverse=True)
    assert misses[0] > misses[-1]
    assert len({r.hits + r.misses for r in results}) == 1


def test_a_faster_link_changes_seconds_alone_for_a_fixed_policy() -> None:
    slow, fast = _one(), _one(profile=PROFILE.replace(bandwidth=4e9))
    assert fast.bytes == slow.bytes
    assert fast.transfer_seconds == pytest.approx(slow.transfer_seconds / 2, rel=1e-12)


def test_progress() -> None:
    trace = random_trace(np.random.default_rng(8), prompts=3)
    seen: list[tuple[int, int]] = []
    results = replay(
        trace,
        policies=["ar", "eagle-4"],
        profile=PROFILE,
        cache=[3, 4],
        progress=lambda done, total: seen.append((done, total)),
    )
    total = trace.n_cycles * 4
    done = [d for d, _ in seen]
    assert {t for _, t in seen} == {total}
    assert done == sorted(set(done))
    assert done[-1] == total
    assert len(done) == len(results) * len(trace.prompts)


def test_resident_experts_that_cost_too() -> None:
    priced = PROFILE.replace(resident_bandwidth=1e12)
    r, free = _one(expert_bytes=6_000_000, profile=priced), _one(expert_bytes=6_000_000)
    assert (r.hits, r.bytes) == (free.hits, free.bytes)
    assert r.seconds - free.seconds == pytest.approx(r.hits * 6e-6, rel=1e-9)


def test_a_profile_without_a_link_has_no_cache_to_size() -> None:
    trace = random_trace(np.random.default_rng(8))
    with pytest.raises(InvalidInputError, match="profile hbm keeps all experts resident"):
        replay(trace, policies=["ar"], profile="hbm", cache="25%")


def test_sizes_that_the_node_time_forbids() -> None:
    table = [0.0, 1e-3, math.inf, 2e-3, *[math.inf] * 11]
    profile = PROFILE.replace(node_time=table)
    assert _one(profile=profile, policies="pool-exact").nodes > 0
    with pytest.raises(InvalidInputError, match=r"policy eagle-2 verifies 2 nodes, which the"):
        _one(profile=profile, policies="eagle-2")
    with pytest.raises(InvalidInputError, match="forbids one node, but prompts begin with plain"):
        _one(profile=PROFILE.replace(node_time=[0.0, math.inf, *[1e-3] * 13]))
    with pytest.raises(InvalidInputError, match="node_time has 3 entries but the tree has 14"):
        _one(profile=PROFILE.replace(node_time=[0.0, 1e-3, 1e-3]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": []}, "no cache size was given"),
        ({"cache": "lots"}, "cache size 'lots' is not understood"),
        ({"cache_policy": "arc"}, "cache policy 'arc' is unknown"),
        ({"profile": "pcie9"}, "profile 'pcie9' is unknown"),
        ({"policies": "best"}, "policy 'best' is unknown"),
        ({"policies": []}, "no policy was given"),
        ({"profile": PROFILE.replace(fixed_time=0.0, node_time=0.0)}, "both zero"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        _one(**options)
