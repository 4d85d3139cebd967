"""The simulated caches: what every kind must do, what each is for, and Belady's optimum."""

from __future__ import annotations

from functools import cache as remembered
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_trace import random_trace

from specfit_opt.errors import InvalidInputError
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import CACHES, replay
from specfit_opt.replay.caches import Cache, get_cache
from specfit_opt.replay.caches.lfu import DECAY

Passes = list[NDArray[np.bool_]]

#: Kinds that bring experts in and give them up; `resident` does neither.
KINDS = [name for name in CACHES if name != "resident"]
PROFILE = HardwareProfile(
    name="test", bandwidth=2e9, fixed_time=0.02, node_time=1e-4, draft_time=1e-3
)


def made(name: str, slots: int, passes: Passes) -> Cache:
    kind = get_cache(name)
    cache = kind.make(*passes[0].shape, slots)
    if kind.clairvoyant:
        cache.foresee(passes)
    return cache


def misses(name: str, slots: int, passes: Passes, weights: list[NDArray[np.float64]]) -> int:
    cache = made(name, slots, passes)
    return sum(int(cache.use(u, w).sum()) for u, w in zip(passes, weights, strict=True))


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


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, Passes, list[NDArray[np.float64]]]:
    n_layers, n_experts = draw(st.integers(1, 2)), draw(st.integers(1, 7))
    slots = draw(st.integers(0, n_experts))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1, 14)), n_layers, n_experts)
    passes = rng.random(shape) < draw(st.sampled_from([0.15, 0.4, 0.8]))
    weights = np.where(passes, rng.choice([0.01, 0.09, 0.1, 0.7, 1.0], shape), 0.0)
    return slots, list(passes), list(weights)


# ---- every kind


@pytest.mark.parametrize("name", CACHES)
def test_entries_are_complete(name: str) -> None:
    kind = get_cache(name)
    assert kind.name == name
    assert kind.summary
    assert kind.source


def test_unknown_cache_policy() -> None:
    with pytest.raises(InvalidInputError, match="'arc' is unknown; the cache policies are lru"):
        get_cache("arc")


@pytest.mark.parametrize("name", KINDS)
@given(workload=workloads())
def test_invariants(
    name: str, workload: tuple[int, Passes, list[NDArray[np.float64]]]
) -> None:
    slots, passes, weights = workload
    cache = made(name, slots, passes)
    assert not cache.resident.any()
    for used, weight in zip(passes, weights, strict=True):
        asked = used.copy()
        before = cache.resident
        missed = cache.use(used, weight)
        after = cache.resident
        assert np.array_equal(used, asked)
        assert np.array_equal(missed, used & ~before)
        # Nothing comes in unused, and no slot stays free that something could have had.
        assert not (after & ~before & ~used).any()
        assert (after.sum(axis=1) == np.minimum((before | used).sum(axis=1), slots)).all()
        assert not after.flags.writeable


@pytest.mark.parametrize("name", KINDS)
@given(workload=workloads())
def test_layers_do_not_mix(
    name: str, workload: tuple[int, Passes, list[NDArray[np.float64]]]
) -> None:
    slots, passes, weights = workload
    together = made(name, slots, passes)
    alone = [made(name, slots, [u[i : i + 1] for u in passes]) for i in range(len(passes[0]))]
    for used, weight in zip(passes, weights, strict=True):
        together.use(used, weight)
        for i, cache in enumerate(alone):
            cache.use(used[i : i + 1], weight[i : i + 1])
            assert np.array_equal(cache.resident[0], together.resident[i])


@pytest.mark.parametrize("name", [name for name in KINDS if name != "belady"])
@given(workload=workloads())
def test_taking_over_keeps_the_order_of_uses(
    name: str, workload: tuple[int, Passes, list[NDArray[np.float64]]]
) -> None:
    slots, passes, weights = workload
    cache, other = made(name, slots, passes), made(name, slots, passes)
    half = len(passes) // 2
    for used, weight in zip(passes[:half], weights, strict=False):
        cache.use(used, weight)
        other.use(used, weight)
    # What is there already changes nothing.
    other.take_over(cache.resident)
    for used, weight in zip(passes[half:], weights[half:], strict=True):
        assert np.array_equal(cache.use(used, weight), other.use(used, weight))
        assert np.array_equal(cache.resident, other.resident)
    # Something else counts as never used, and is held from then on.
    held = np.cumsum(~passes[-1], axis=1, dtype=np.int64) * ~passes[-1]
    held = (held > 0) & (held <= slots)
    other.take_over(held)
    assert np.array_equal(other.resident, held)
    assert not other.resident.flags.writeable
    assert np.array_equal(other.use(passes[-1], weights[-1]), passes[-1])


def test_all_resident() -> None:
    (used,) = sets({1, 2}, n_experts=4)
    cache = get_cache("resident").make(1, 4, 4)
    assert not cache.use(used).any()
    assert cache.resident.all()


# ---- each kind


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


def committed_by(number: int) -> int:
    return 1 + number * number % 4


@given(workload=workloads())
def test_lfu_is_the_sum_of_decayed_uses(
    workload: tuple[int, Passes, list[NDArray[np.float64]]],
) -> None:
    slots, passes, _ = workload
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
def test_admit_is_lru_over_what_it_admits(
    workload: tuple[int, Passes, list[NDArray[np.float64]]],
) -> None:
    slots, passes, weights = workload
    cache = made("admit", slots, passes)
    stamps: list[dict[int, int]] = [{} for _ in passes[0]]
    for number, (used, weight) in enumerate(zip(passes, weights, strict=True)):
        cache.use(used, weight)
        for layer, stamp in enumerate(stamps):
            ids = np.flatnonzero(used[layer]).tolist()
            low = [e for e in ids if e not in stamp and weight[layer, e] < 0.1]
            stamp.update({e: number for e in ids if e not in low})
            low.sort(key=lambda e: (-weight[layer, e], e))
            stamp.update(dict.fromkeys(low[: max(slots - len(stamp), 0)], number))
            for e in sorted(stamp, key=lambda e: (stamp[e], e))[: max(len(stamp) - slots, 0)]:
                del stamp[e]
            assert np.flatnonzero(cache.resident[layer]).tolist() == sorted(stamp)


def test_admit_without_weights_is_lru() -> None:
    rng = np.random.default_rng(3)
    passes = list(rng.random((30, 2, 9)) < 0.4)
    caches = [made(name, 4, passes) for name in ("admit", "lru")]
    for used in passes:
        for cache in caches:
            cache.use(used)
        assert np.array_equal(caches[0].resident, caches[1].resident)


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
    weights = [np.ones((1, 5))] * len(passes)
    assert misses("belady", slots, asked, weights) == fewest_misses(slots, passes)


@given(workload=workloads())
def test_nothing_misses_less_than_belady(
    workload: tuple[int, Passes, list[NDArray[np.float64]]],
) -> None:
    slots, passes, weights = workload
    least = misses("belady", slots, passes, weights)
    for name in KINDS:
        assert misses(name, slots, passes, weights) >= least


def test_belady_refuses_passes_that_it_was_not_told_of() -> None:
    passes = sets({0}, {1}, n_experts=3)
    with pytest.raises(InvalidInputError, match="pass 0 is not the one"):
        get_cache("belady").make(1, 3, 2).use(passes[0])
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
        for name in KINDS
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
    (lru,) = replay(trace, policies="eagle-6", profile=PROFILE, cache=4)
    assert (r.tokens, r.passes) == (lru.tokens, lru.passes)
    assert r.misses <= lru.misses


@pytest.mark.parametrize("policy", ["pool-exact", "specfit", "evict"])
def test_belady_serves_fixed_policies_only(policy: str) -> None:
    trace = random_trace(np.random.default_rng(5))
    with pytest.raises(InvalidInputError, match=f"what policy {policy} chooses depends on more"):
        replay(trace, policies=["ar", policy], profile=PROFILE, cache=4, cache_policy="belady")
