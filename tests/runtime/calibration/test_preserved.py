"""An expert cache that was used on the side is as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from manual_store import LIVE_RULES, ManualStore, layouts_of, use_all

from specfit_runtime.errors import StoreError
from specfit_runtime.expert_cache import ExpertCache
from specfit_runtime.expert_cache.preserved import preserved


def cache_of(policy: str = "lru", slots: tuple[int, ...] = (3, 5), **options: Any) -> Any:
    store = ManualStore(layouts_of([6, 10]), 8, **options)
    return ExpertCache(store, slots, policy=policy, scratch=2), store


def wander(cache: ExpertCache, rng: random.Random, passes: int) -> None:
    for _ in range(passes):
        cache.begin_pass()
        for layer in range(2):
            if rng.random() < 0.5:
                cache.prefetch(layer, rng.sample(range(8), 2))
                # Who is evicted depends on whether an expert that nobody uses has arrived.
                cache._slots.store.drain()
            use_all(cache, layer, rng.sample(range(8), rng.randint(1, 6)))


@pytest.mark.parametrize("policy", LIVE_RULES)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_inside_leaves_no_trace(policy: str, seed: int) -> None:
    (cache, store), (twin, other) = cache_of(policy, seed=None), cache_of(policy, seed=None)
    wander(cache, random.Random(seed), 5)
    wander(twin, random.Random(seed), 5)
    cache.end_pass()
    twin.end_pass()
    held, counters = cache.resident.copy(), cache.counters()
    with preserved(cache):
        wander(cache, random.Random(seed + 100), 7)
        cache.drop(0, range(8))
        assert cache.counters() != counters
    assert not store.under_way
    assert (cache.resident == held).all()
    # The time that was waited differs between any two runs.
    assert cache.counters() == counters
    # Who goes next is as it was, too: both go on alike, once nothing is on its way any more. What
    # still comes is not evicted.
    for step in range(10):
        for one, of in ((cache, store), (twin, other)):
            of.drain()
            wander(one, random.Random(seed + 200 + step), 1)
        assert (cache.resident == twin.resident).all()
        assert cache.counters().misses == twin.counters().misses
        assert cache.counters().evictions == twin.counters().evictions


def test_an_exception_inside_restores_as_well() -> None:
    cache, _ = cache_of()
    use_all(cache, 0, [1, 2])
    held = cache.resident.copy()

    def interrupted() -> None:
        with preserved(cache):
            use_all(cache, 0, [4, 5, 6])
            for _ in cache.use(0, [0, 1, 2], [1, 1, 1]):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (cache.resident == held).all()
    use_all(cache, 0, [1, 2])
    assert cache.counters().hits == 2


def test_an_expert_that_cannot_be_fetched_again_is_left_out() -> None:
    cache, store = cache_of()
    use_all(cache, 1, [0, 1, 2])
    with preserved(cache):
        cache.drop(1, [1, 2])
        store.failing.add((1, 2))
    assert np.flatnonzero(cache.resident[1]).tolist() == [0, 1]
    store.failing.add((1, 2))
    with pytest.raises(StoreError, match="layer 1, expert 2: made to fail"):
        use_all(cache, 1, [0, 1, 2])
    use_all(cache, 1, [0, 1, 2])


def test_dropped_experts_are_fetched_at_the_next_use() -> None:
    cache, store = cache_of()
    use_all(cache, 0, [0, 1, 2])
    cache.prefetch(1, [3, 4])
    cache.drop(0, [1, 7])
    cache.drop(1, [3])
    assert np.flatnonzero(cache.resident[0]).tolist() == [0, 2]
    assert np.flatnonzero(cache.resident[1]).tolist() == [4]
    store.fetched.clear()
    use_all(cache, 0, [0, 1, 2])
    use_all(cache, 1, [3, 4])
    assert store.fetched == [(0, 1), (1, 3)]
