"""Which experts of an expert cache go first, by the rules that the replay follows too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_store import LIVE_RULES, ManualStore, layouts_of, use_all

from specfit_opt.caches import CACHE_RULES, SimulatedCache
from specfit_runtime.expert_cache import ExpertCache

N_EXPERTS = 8


def cache_of(policy: str, slots: int) -> ExpertCache:
    store = ManualStore(layouts_of([4]), N_EXPERTS)
    return ExpertCache(store, [slots], policy=policy, scratch=2)


def used_mask(experts: set[int]) -> np.ndarray:
    return np.isin(np.arange(N_EXPERTS), list(experts))[None]


def agree(name: str, slots: int, passes: list[tuple[set[int], int]]) -> None:
    """Run the same passes on both caches."""
    cache = cache_of(name, slots)
    reference = SimulatedCache(CACHE_RULES[name], slots, 1, N_EXPERTS)
    for experts, tokens in passes:
        missed = reference.use(used_mask(experts))
        before = cache.counters()
        use_all(cache, 0, sorted(experts))
        reference.committed(tokens)
        cache.end_pass(tokens)
        assert (cache.counters() - before).misses == missed.sum()
        assert np.array_equal(cache.resident, reference.resident)


@pytest.mark.parametrize("name", LIVE_RULES)
@given(
    slots=st.integers(1, N_EXPERTS),
    passes=st.lists(
        st.tuples(st.integers(0, N_EXPERTS - 1).map(lambda e: {e}), st.integers(1, 5)),
        max_size=40,
    ),
)
def test_the_same_as_the_simulated_cache(
    name: str, slots: int, passes: list[tuple[set[int], int]]
) -> None:
    """Where nothing in use stands in the way, that is where a pass uses one expert."""
    agree(name, slots, passes)


@given(
    st.integers(1, N_EXPERTS),
    st.lists(st.sets(st.integers(0, N_EXPERTS - 1), min_size=1), max_size=25),
)
def test_lru_is_the_simulated_cache_while_every_pass_fits(
    slots: int, passes: list[set[int]]
) -> None:
    agree("lru", slots, [(experts, 1) for experts in passes if len(experts) <= slots])


@pytest.mark.parametrize("name", LIVE_RULES)
def test_what_fewer_tokens_ask_for_passes_through_among_equals(name: str) -> None:
    cache = cache_of(name, 2)
    use_all(cache, 0, [1, 2, 3], [4, 1, 2])
    assert np.flatnonzero(cache.resident[0]).tolist() == [1, 3]
    # What is there and what comes are alike for fifo only if they came together.
    cache.clear()
    use_all(cache, 0, [1, 2, 3], [1, 1, 1])
    assert np.flatnonzero(cache.resident[0]).tolist() == [2, 3]
