"""The simulated cache: what it does by every eviction rule, and Belady's optimum."""

from __future__ import annotations

from functools import cache as remembered
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_trace import random_trace

from specfit_opt.caches import CACHE_RULES, CacheRule, EvictionRule, SimulatedCache
from specfit_opt.caches.lfu import DECAY
from specfit_opt.errors import InvalidInputError
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import replay

Passes = list[NDArray[np.bool_]]

RULES = list(CACHE_RULES)
PROFILE = HardwareProfile(
    name="test", bandwidth=2e9, fixed_time=0.02, node_time=1e-4, draft_time=1e-3
)


def made(name: str, slots: int | list[int], passes: Passes) -> SimulatedCache:
    cache = SimulatedCache(CACHE_RULES[name], slots, *passes[0].shape)
    cache.foresee(passes)
    return cache


def misses(name: str, slots: int, passes: Passes) -> int:
    cache = made(name, slots, passes)
    return sum(int(cache.use(used).sum()) for used in passes)


def sets(*passes: set[int], n_experts: int) -> Passes:
    found = np.zeros((len(passes), 1, n_experts), dtype=np.bool_)
    for used, experts in zip(found, passes, strict=True):
        used[0, sorted(experts)] = True
    return list(found)


def held_after(name: str, slots: int, *passes: set[int], n_experts: int = 8) -> list[int]:
    asked = sets(*passes, n_experts=n_experts)
    cache = made(name, slots, asked)
    for used in asked:
        cache.use(used)
    return np.flatnonzero(cache.resident[0]).tolist()


def committed_by(number: int) -> int:
    return 1 + number * number % 4


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, Passes]:
    n_layers, n_experts = draw(st.integers(1, 2)), draw(st.integers(1, 7))
    slots = draw(st.integers(0, n_experts))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1, 14)), n_layers, n_experts)
    passes = rng.random(shape) < draw(st.sampled_from([0.15, 0.4, 0.8]))
    return slots, list(passes)


# ---- every rule


@pytest.mark.parametrize("name", RULES)
@given(workload=workloads())
def test_invariants(
    name: str, workload: tuple[int, Passes]
) -> None:
    slots, passes = workload
    cache = made(name, slots, passes)
    assert not cache.resident.any()
    for used in passes:
        asked = used.copy()
        before = cache.resident
        missed = cache.use(used)
        after = cache.resident
        assert np.array_equal(used, asked)
        assert np.array_equal(missed, used & ~before)
        # Nothing comes in unused, and no slot stays free that something could have had.
        assert not (after & ~before & ~used).any()
        assert (after.sum(axis=1) == np.minimum((before | used).sum(axis=1), slots)).all()
        assert not after.flags.writeable


@pytest.mark.parametrize("name", RULES)
@given(workload=workloads())
def test_layers_do_not_mix(
    name: str, workload: tuple[int, Passes]
) -> None:
    slots, passes = workload
    together = made(name, slots, passes)
    alone = [made(name, slots, [u[i : i + 1] for u in passes]) for i in range(len(passes[0]))]
    for used in passes:
        together.use(used)
        for i, cache in enumerate(alone):
            cache.use(used[i : i + 1])
            assert np.array_equal(cache.resident[0], together.resident[i])


@pytest.mark.parametrize("name", [name for name in RULES if name != "belady"])
@given(workload=workloads())
def test_taking_over_keeps_the_order_of_uses(
    name: str, workload: tuple[int, Passes]
) -> None:
    slots, passes = workload
    cache, other = made(name, slots, passes), made(name, slots, passes)
    half = len(passes) // 2
    for used in passes[:half]:
        cache.use(used)
        other.use(used)
    # What is there already changes nothing.
    other.take_over(cache.resident)
    for used in passes[half:]:
        assert np.array_equal(cache.use(used), other.use(used))
        assert np.array_equal(cache.resident, other.resident)
    # Something else counts as never used, and is held from then on.
    held = np.cumsum(~passes[-1], axis=1, dtype=np.int64) * ~passes[-1]
    held = (held > 0) & (held <= slots)
    other.take_over(held)
    assert np.array_equal(other.resident, held)
    assert not other.resident.flags.writeable
    assert np.array_equal(other.use(passes[-1]), passes[-1])


@pytest.mark.parametrize("name", RULES)
@given(workload=workloads(), seed=st.integers(0, 1000))
def test_layers_may_have_different_slots(
    name: str, workload: tuple[int, Passes], seed: int
) -> None:
    _, passes = workload
    n_layers, n_experts = passes[0].shape
    slots = np.random.default_rng(seed).integers(0, n_experts + 1, n_layers).tolist()
    together = made(name, slots, passes)
    alone = [
        made(name, own, [used[i : i + 1] for used in passes]) for i, own in enumerate(slots)
    ]
    for number, used in enumerate(passes):
        missed = together.use(used)
        together.committed(committed_by(number))
        for i, cache in enumerate(alone):
            assert np.array_equal(cache.use(used[i : i + 1])[0], missed[i])
            assert np.array_equal(cache.resident[0], together.resident[i])
            cache.committed(committed_by(number))


class LongestId(EvictionRule):
    """Ranks all experts alike, in floating-point numbers."""

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._shape = n_layers, n_experts

    def use(self, used: object, layer: object = ...) -> None:
        """Forget it."""

    def rank(self, layer: object = ...) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(self._shape)


@given(workload=workloads())
def test_a_rule_of_ones_own_and_ties(workload: tuple[int, Passes]) -> None:
    slots, passes = workload
    rule = CacheRule("longest-id", LongestId, "keeps the largest ids", "none")
    cache = SimulatedCache(rule, slots, *passes[0].shape)
    for used in passes:
        there = cache.resident | used
        cache.use(used)
        for layer, ids in enumerate(map(np.flatnonzero, there)):
            kept = ids[max(len(ids) - slots, 0) :]
            assert np.flatnonzero(cache.resident[layer]).tolist() == kept.tolist()


def test_taking_over_copies_and_remembers_earlier_uses() -> None:
    passes = sets({3}, {3}, {0}, {2}, n_experts=4)
    cache = made("lfu", 2, passes)
    for used in passes[:3]:
        cache.use(used)
    held = np.array([[False, True, False, True]])
    cache.take_over(held)
    held[:] = False
    cache.use(passes[3])
    assert cache.resident.tolist() == [[False, False, True, True]]


# ---- each rule


def test_fifo_ignores_use() -> None:
    assert held_after("fifo", 2, {0}, {1}, {0}, {0}, {2}) == [1, 2]


def test_lru_2_keeps_what_comes_back() -> None:
    passes = [{0}, {1}, {0}, {1}, {2}, {3}, {4}, {5}]
    assert held_after("lru", 3, *passes) == [3, 4, 5]
    assert held_after("lru-2", 3, *passes) == [0, 1, 5]


def test_what_lfu_loads_takes_no_slot_from_what_is_used_more() -> None:
    assert held_after("lfu", 2, {5, 6}, {5, 6}, {0}, {1}) == [5, 6]
    assert held_after("lfu", 2, {5, 6}, {5, 6}, {0}, {0}, {0}) == [0, 6]


def test_lfu_forgets() -> None:
    famous = [{7}] * 60
    fresh = 0
    while DECAY**fresh / (1 - DECAY) > 1:  # what 60 uses are worth after so many passes
        fresh += 1
    assert held_after("lfu", 1, *famous, {2}) == [7]
    assert held_after("lfu", 1, *famous, *[{2}] * fresh) == [2]


@given(workload=workloads())
def test_lfu_is_the_sum_of_decayed_uses(
    workload: tuple[int, Passes],
) -> None:
    slots, passes = workload
    cache = made("lfu", slots, passes)
    begun = []
    for now, used in enumerate(passes):
        before = cache.resident
        begun.append(sum(committed_by(at) for at in range(now)))
        cache.use(used)
        if committed_by(now) > 1:  # one is what every pass is taken for
            cache.committed(committed_by(now))
        ages = [begun[now] - at for at in begun]
        worth = sum(DECAY**age * u for age, u in zip(ages, passes, strict=False))
        kept, gone = cache.resident, (before | used) & ~cache.resident
        for layer in range(len(used)):
            if gone[layer].any() and kept[layer].any():
                assert worth[layer][kept[layer]].min() >= worth[layer][gone[layer]].max() - 1e-9


@given(workload=workloads())
def test_lru_is_the_same_as_dictionaries(workload: tuple[int, Passes]) -> None:
    slots, passes = workload
    cache = made("lru", slots, passes)
    stamps: list[dict[int, int]] = [{} for _ in passes[0]]
    for number, used in enumerate(passes):
        missed = cache.use(used)
        for layer, stamp in enumerate(stamps):
            ids = np.flatnonzero(used[layer]).tolist()
            assert np.flatnonzero(missed[layer]).tolist() == [e for e in ids if e not in stamp]
            stamp.update(dict.fromkeys(ids, number))
            for e in sorted(stamp, key=lambda e: (stamp[e], e))[: max(len(stamp) - slots, 0)]:
                del stamp[e]
            assert np.flatnonzero(cache.resident[layer]).tolist() == sorted(stamp)


def test_equal_stamps_evict_the_smallest_id_first() -> None:
    assert held_after("lru", 2, {0, 1, 3, 4}, n_experts=6) == [3, 4]


def test_the_least_recent_goes_whatever_its_id() -> None:
    assert held_after("lru", 2, {3}, {0}, {1}, n_experts=4) == [0, 1]


# ---- Belady


def fewest_misses(slots: int, passes: list[frozenset[int]]) -> int:
    """Return the fewest misses of any cache, by trying what to keep after every pass."""

    @remembered
    def best(at: int, held: frozenset[int]) -> int:
        if at == len(passes):
            return 0
        used = passes[at]
        there = sorted(held | used)
        kept = (frozenset(k) for k in combinations(there, min(slots, len(there))))
        return len(used - held) + min(best(at + 1, k) for k in kept)

    return best(0, frozenset())


@settings(max_examples=60)
@given(
    st.integers(0, 4),
    st.lists(st.frozensets(st.integers(0, 4), max_size=5), min_size=1, max_size=8),
)
def test_belady_is_the_optimum(slots: int, passes: list[frozenset[int]]) -> None:
    asked = sets(*map(set, passes), n_experts=5)
    assert misses("belady", slots, asked) == fewest_misses(slots, passes)


@given(workload=workloads())
def test_nothing_misses_less_than_belady(
    workload: tuple[int, Passes],
) -> None:
    slots, passes = workload
    least = misses("belady", slots, passes)
    for name in RULES:
        assert misses(name, slots, passes) >= least


def test_belady_refuses_passes_that_it_was_not_told_of() -> None:
    passes = sets({0}, {1}, n_experts=3)
    with pytest.raises(InvalidInputError, match="pass 0 is not the one"):
        SimulatedCache(CACHE_RULES["belady"], 2, 1, 3).use(passes[0])
    cache = made("belady", 2, passes)
    cache.use(passes[0])
    with pytest.raises(InvalidInputError, match="pass 1 is not the one"):
        cache.use(passes[0])
    cache.use(passes[1])
    with pytest.raises(InvalidInputError, match="pass 2 is not the one"):
        cache.use(passes[1])


# ---- in the replay


@pytest.mark.parametrize("policy", ["ar", "chain-2", "eagle-6"])
def test_a_replay_misses_least_with_belady(policy: str) -> None:
    trace = random_trace(np.random.default_rng(5), prompts=3)
    found = {
        name: replay(
            trace,
            policies=[policy],
            profile=PROFILE,
            cache=[0, 2, 4, 9],
            cache_policy=name,
            warmup=0,
        )
        for name in RULES
    }
    for name, results in found.items():
        assert {r.cache_policy for r in results} == {name}
        for r, least in zip(results, found["belady"], strict=True):
            # The same passes, whatever the cache does.
            assert (r.tokens, r.passes, r.nodes) == (least.tokens, least.passes, least.nodes)
            assert r.hits + r.misses == least.hits + least.misses
            assert r.misses >= least.misses
    assert found["belady"][1].misses < found["lru"][1].misses


def test_a_replay_tells_belady_of_the_plain_start_too() -> None:
    trace = random_trace(np.random.default_rng(5), prompts=3)
    (r,) = replay(trace, policies="eagle-6", profile=PROFILE, cache=4, cache_policy="belady")
    (lru,) = replay(trace, policies="eagle-6", profile=PROFILE, cache=4, cache_policy="lru")
    assert (r.tokens, r.passes) == (lru.tokens, lru.passes)
    assert r.misses <= lru.misses


@pytest.mark.parametrize("policy", ["pool-exact", "specfit", "evict"])
def test_belady_serves_fixed_policies_only(policy: str) -> None:
    trace = random_trace(np.random.default_rng(5))
    with pytest.raises(InvalidInputError, match=f"what policy {policy} chooses depends on more"):
        replay(trace, policies=["ar", policy], profile=PROFILE, cache=4, cache_policy="belady")
