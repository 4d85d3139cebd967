"""The eviction policies: what all must do, and what each is for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_store import ManualStore, layouts_of, use_all

from specfit_opt.replay.caches import get_cache
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.expert_cache import EVICTION_POLICIES, ExpertCache, get_eviction_policy
from specfit_runtime.expert_cache.eviction import EvictionPolicy, lfu

N_EXPERTS = 8


def make(name: str, n_layers: int = 1) -> EvictionPolicy:
    return EVICTION_POLICIES[name].make(n_layers, N_EXPERTS)


def cache_of(policy: str, slots: int, n_layers: int = 1, n_experts: int = N_EXPERTS) -> ExpertCache:
    store = ManualStore(layouts_of([4] * n_layers), n_experts)
    return ExpertCache(store, [slots] * n_layers, policy=policy, scratch=2)


def residents(cache: ExpertCache, layer: int = 0) -> list[int]:
    return np.flatnonzero(cache.resident[layer]).tolist()


# ---- the registry


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_entries_are_complete(name: str) -> None:
    kind = get_eviction_policy(name)
    assert kind.name == name
    assert kind.summary
    assert kind.source


@pytest.mark.parametrize("name", ["mru", "", None, 3, ["lru"]])
def test_unknown_policy(name: object) -> None:
    with pytest.raises(InvalidInputError, match=r"unknown; the cache policies are lru, lru-2, lfu"):
        get_eviction_policy(name)


@given(
    st.sampled_from(sorted(EVICTION_POLICIES)),
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(0, N_EXPERTS - 1), min_size=1)), max_size=12
    ),
    st.sets(st.integers(0, N_EXPERTS - 1), min_size=1),
    st.integers(0, 10),
    st.sets(st.integers(0, N_EXPERTS - 1)),
)
def test_victims_are_distinct_candidates(
    name: str,
    history: list[tuple[bool, set[int]]],
    candidates: set[int],
    count: int,
    newcomers: set[int],
) -> None:
    policy = make(name)
    for touch, experts in history:
        if touch:
            policy.touch(0, sorted(experts), [1] * len(experts))
        else:
            policy.admit(0, min(experts))
    victims = policy.victims(0, sorted(candidates), count, newcomers)
    assert len(victims) == len(set(victims)) == min(count, len(candidates))
    assert set(victims) <= candidates
    assert all(type(v) is int for v in victims)
    # The order is one order: fewer victims are the first of more, whatever order they are named in.
    fewer = max(count - 1, 0)
    reverse = sorted(candidates, reverse=True)
    assert policy.victims(0, reverse, fewer, newcomers) == victims[:fewer]


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_layers_do_not_mix(name: str) -> None:
    alone, beside = make(name), make(name, 2)
    for experts in ([1, 2], [2, 3], [5]):
        for policy in (alone, beside):
            policy.touch(0, experts, [1] * len(experts))
            policy.admit(0, experts[0])
        beside.touch(1, [7, 6, 1], [1, 2, 3])
        beside.admit(1, 3)
    everyone = range(N_EXPERTS)
    assert alone.victims(0, everyone, 8) == beside.victims(0, everyone, 8)


@pytest.mark.parametrize("name", EVICTION_POLICIES)
@given(
    slots=st.integers(1, N_EXPERTS),
    passes=st.lists(
        st.tuples(
            st.integers(0, N_EXPERTS - 1),
            st.sampled_from([0.0, 0.05, 0.5, 1.0]),
            st.integers(1, 5),
        ),
        max_size=40,
    ),
)
def test_the_replay_cache_of_the_same_name_does_the_same(
    name: str, slots: int, passes: list[tuple[int, float, int]]
) -> None:
    """Where nothing in use stands in the way, that is where a pass uses one expert."""
    cache = cache_of(name, slots)
    kind = get_cache(name)
    assert kind.weighs == cache.weighs
    reference = kind.make(1, N_EXPERTS, slots)
    for expert, likely, tokens in passes:
        used = np.zeros((1, N_EXPERTS), dtype=np.bool_)
        used[0, expert] = True
        missed = reference.use(used, np.where(used, likely, 0.0))
        before = cache.counters()
        use_all(cache, 0, [expert], weight=[likely])
        reference.committed(tokens)
        cache.end_pass(tokens)
        assert (cache.counters() - before).misses == missed.sum()
        assert np.array_equal(cache.resident, reference.resident)


# ---- lru


@given(
    st.integers(1, N_EXPERTS),
    st.lists(st.sets(st.integers(0, N_EXPERTS - 1), min_size=1), max_size=25),
)
def test_lru_is_the_replay_cache(slots: int, passes: list[set[int]]) -> None:
    """While every pass fits, residents and misses are those of the traces' reference cache."""
    cache = cache_of("lru", slots)
    reference = get_cache("lru").make(1, N_EXPERTS, slots)
    for experts in passes:
        if len(experts) > slots:
            continue
        used = np.zeros((1, N_EXPERTS), dtype=np.bool_)
        used[0, sorted(experts)] = True
        missed = reference.use(used)
        before = cache.counters()
        use_all(cache, 0, sorted(experts))
        assert (cache.counters() - before).misses == missed.sum()
        assert np.array_equal(cache.resident, reference.resident)


# ---- the others


def test_fifo_ignores_use() -> None:
    cache = cache_of("fifo", 2)
    for expert in (0, 1, 0, 0, 2):
        use_all(cache, 0, [expert])
    assert residents(cache) == [1, 2]


def test_lru_2_keeps_what_comes_back() -> None:
    """A scan of experts used once each does not push out those used twice."""
    kept = {}
    for name in ("lru", "lru-2"):
        cache = cache_of(name, 3)
        for expert in (0, 1, 0, 1, 2, 3, 4, 5):
            use_all(cache, 0, [expert])
        kept[name] = residents(cache)
    assert kept == {"lru": [3, 4, 5], "lru-2": [0, 1, 5]}


def test_lfu_keeps_what_is_used_often() -> None:
    cache = cache_of("lfu", 2)
    for expert in (0, 0, 0, 1, 2, 3):
        use_all(cache, 0, [expert])
    assert residents(cache) == [0, 3]


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_what_fewer_tokens_asked_for_goes_first_among_equals(name: str) -> None:
    policy = make(name)
    policy.touch(0, [1, 2, 3], [4, 1, 2])
    assert policy.victims(0, [1, 2, 3], 3, [1, 2, 3]) == [2, 3, 1]


def test_admit_counts_unlikely_residents_as_lru_does() -> None:
    policy = make("admit")
    policy.touch(0, [4], [1], [0.01])
    policy.touch(0, [5, 6, 7], [1, 1, 1], [0.05, 1.0, 0.02])
    assert policy.victims(0, [4, 5, 6, 7], 4) == [4, 5, 6, 7]
    assert policy.victims(0, [4, 5, 6, 7], 4, [5, 6, 7]) == [7, 5, 4, 6]


def test_lfu_forgets() -> None:
    """Old fame fades: after a change of topic the experts of the new one stay."""
    policy = make("lfu")
    for _ in range(60):
        policy.touch(0, [0], [1])
    for _ in range(40):
        policy.touch(0, [1], [1])
    assert policy.victims(0, [0, 1], 1) == [0]
    # Without aging the 60 uses would still count for more than the 40.
    frozen_count = {0: 60, 1: 40}
    assert min(frozen_count, key=lambda e: frozen_count[e]) == 1


def test_lfu_counts_as_the_definition_says() -> None:
    """The scaled counts order as sums of decay ** age do, also over a rescaling."""
    policy = make("lfu")
    rng = np.random.default_rng(0)
    exact = np.zeros(N_EXPERTS)
    unit_start = 0.9 * lfu._LARGEST_UNIT
    policy._unit[0] = unit_start  # type: ignore[attr-defined]
    for _ in range(200):
        used = np.flatnonzero(rng.random(N_EXPERTS) < np.linspace(0.1, 0.9, N_EXPERTS))
        exact *= lfu.DECAY
        exact[used] += 1.0
        policy.touch(0, used.tolist(), [1] * len(used))
        tokens = int(rng.integers(1, 8))
        exact *= lfu.DECAY ** (tokens - 1)
        policy.committed(tokens)
        assert policy.victims(0, range(N_EXPERTS), 8) == np.argsort(exact, kind="stable").tolist()
    assert policy._unit[0] < unit_start  # type: ignore[attr-defined]
