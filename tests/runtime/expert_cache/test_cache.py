"""The expert cache, one behaviour at a time."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from manual_store import LIVE_RULES, ManualStore, check_batch, layouts_of, use_all

from specfit_runtime.errors import BusyError, InvalidInputError, StoreError
from specfit_runtime.expert_cache import CacheCounters, ExpertCache, default_scratch, slabs

N_EXPERTS = 12


def cache_of(slots: Any = 4, *, scratch: int = 2, widths: Any = (16,), **options: Any) -> Any:
    """Return a cache and its store; fetches end only when they are waited for."""
    store = ManualStore(layouts_of(widths), N_EXPERTS, seed=options.pop("seed", None))
    counts = [slots] * len(widths) if isinstance(slots, int) else slots
    return ExpertCache(store, counts, scratch=scratch, **options), store


def residents(cache: ExpertCache, layer: int = 0) -> list[int]:
    return np.flatnonzero(cache.resident[layer]).tolist()


# ---- hits and misses


def test_first_use_misses_and_second_hits() -> None:
    cache, store = cache_of()
    use_all(cache, 0, [3, 5])
    assert store.fetched == [(0, 3), (0, 5)]
    use_all(cache, 0, [3, 5])
    assert store.fetched == [(0, 3), (0, 5)]
    counters = cache.counters()
    assert (counters.lookups, counters.hits, counters.misses) == (4, 2, 2)
    assert counters.bytes == 2 * 64
    assert counters.hit_rate == 0.5
    assert residents(cache) == [3, 5]


def test_all_misses_are_fetched_before_the_hits_are_handed_out() -> None:
    cache, store = cache_of()
    use_all(cache, 0, [0, 1])
    with closing(cache.use(0, [0, 1, 2, 3], [1] * 4)) as batches:
        first = next(batches)
        assert first.experts == (0, 1)
        assert store.fetched[2:] == [(0, 2), (0, 3)]
        assert len(store.under_way) == 2  # compute now overlaps with both
        check_batch(first, 0)


def test_arrivals_are_handed_out_in_the_order_in_which_they_arrive() -> None:
    cache, store = cache_of()
    with closing(cache.use(0, [0, 1, 2], [1] * 3)) as batches:
        # Nothing is there: the first fetched is waited for.
        assert next(batches).experts == (0,)
        store.under_way[1].end()
        assert next(batches).experts == (2,)
        assert next(batches).experts == (1,)
        assert list(batches) == []


def test_arrivals_together_are_one_batch() -> None:
    cache, store = cache_of()
    with closing(cache.use(0, [0, 1, 2], [1] * 3)) as batches:
        assert next(batches).experts == (0,)
        store.drain()
        assert sorted(next(batches).experts) == [1, 2]


def test_an_expert_that_is_under_way_is_a_hit() -> None:
    cache, store = cache_of()
    with closing(cache.use(0, [0, 1], [1, 1])) as batches:
        next(batches)
    assert len(store.under_way) == 1  # the second was never waited for
    use_all(cache, 0, [0, 1])
    assert store.fetched == [(0, 0), (0, 1)]
    assert cache.counters().hits == 2


def test_layers_have_their_own_slots_and_record_sizes() -> None:
    cache, _ = cache_of([2, 5], widths=(16, 48))
    for layer in (0, 1):
        for experts in ([0, 1], [2, 3], [4]):
            use_all(cache, layer, experts)
    assert cache.resident.sum(axis=1).tolist() == [2, 5]
    assert cache.counters().bytes == 5 * (64 + 192)
    assert cache.slots == (2, 5)
    assert cache.n_bytes == 2 * 64 + 5 * 192 + 2 * 192


def test_nothing_is_used() -> None:
    cache, _ = cache_of()
    assert list(cache.use(0, [], [])) == []
    assert cache.counters() == CacheCounters()
    assert cache.counters().hit_rate is None


# ---- evictions


@pytest.mark.parametrize("policy", LIVE_RULES)
def test_a_hit_is_not_evicted_for_a_miss_of_the_same_pass(policy: str) -> None:
    """The bug of mlx-lm 1588: slots of hits were looked up first, then given to misses.

    The hits are the first to go by every policy, and nothing else can make room.
    """
    cache, _ = cache_of(3, policy=policy)
    use_all(cache, 0, [0, 1, 2])
    for newest in (1, 2, 2):
        use_all(cache, 0, [newest])
    with closing(cache.use(0, [0, 1, 7], [1] * 3)) as batches:
        for batch in batches:
            check_batch(batch, 0)
    # The newcomer got the third slot, or ranks below who has it and passed through.
    assert residents(cache) in ([0, 1, 7], [0, 1, 2])
    counters = cache.counters()
    assert (counters.evictions, counters.bypassed) == ((1, 0) if 7 in residents(cache) else (0, 1))


def test_a_batch_stays_valid_while_later_ones_arrive() -> None:
    """Batches are computed with until the next is asked for, whatever arrives meanwhile."""
    cache, store = cache_of(4)
    use_all(cache, 0, [0, 1, 2, 3])
    with closing(cache.use(0, [0, 1, 8, 9], [1] * 4)) as batches:
        for batch in batches:
            store.drain()
            check_batch(batch, 0)


def test_the_slot_of_an_expert_under_way_is_not_given_on() -> None:
    """Else the late fetch would overwrite the expert that got the slot, or be waited for."""
    cache, store = cache_of(1)
    cache.prefetch(0, [5])
    late = store.under_way[0]
    use_all(cache, 0, [6])
    assert not late.over
    assert residents(cache) == [5]
    store.drain()
    use_all(cache, 0, [6])
    assert residents(cache) == [6]


# ---- a pass larger than the cache


def test_bypass_keeps_the_residents() -> None:
    cache, store = cache_of(3)
    use_all(cache, 0, [0, 1, 2])
    before = cache.counters()
    use_all(cache, 0, range(N_EXPERTS))
    assert residents(cache) == [0, 1, 2]
    counters = cache.counters() - before
    assert (counters.hits, counters.misses, counters.evictions) == (3, 9, 0)
    assert counters.bypassed == 9
    assert counters.scratch_rounds == 5  # two scratch slots
    assert sorted(store.fetched[3:]) == [(0, e) for e in range(3, N_EXPERTS)]  # each once


def test_what_a_large_pass_does_not_use_makes_room_for_the_most_demanded() -> None:
    cache, _ = cache_of(3)
    use_all(cache, 0, [0, 1, 2])
    before = cache.counters()
    use_all(cache, 0, [1, 4, 5, 6, 7], [1, 1, 9, 2, 5])
    assert residents(cache) == [1, 5, 7]
    counters = cache.counters() - before
    assert (counters.evictions, counters.bypassed, counters.scratch_rounds) == (2, 2, 1)


def test_free_slots_go_to_the_most_demanded() -> None:
    cache, _ = cache_of(4)
    use_all(cache, 0, [9])
    demand = [1, 5, 2, 8, 3, 5, 1, 1, 1, 9, 1, 1]
    use_all(cache, 0, range(N_EXPERTS), demand)
    assert residents(cache) == [1, 3, 5, 9]


def test_the_next_round_loads_while_one_is_computed_with() -> None:
    cache, store = cache_of(1, scratch=2)
    use_all(cache, 0, [0])
    with closing(cache.use(0, range(6), [1] * 6)) as batches:
        assert next(batches).experts == (0,)
        assert len(store.under_way) == 2
        sizes = []
        for batch in batches:
            check_batch(batch, 0)
            sizes.append(len(store.under_way))
    # While a slot is computed with, the other is being filled, up to the last expert.
    assert sizes == [1, 1, 1, 1, 0]


def test_one_scratch_slot_suffices() -> None:
    cache, _ = cache_of(1, scratch=1)
    for _ in range(2):
        use_all(cache, 0, range(N_EXPERTS))
    assert residents(cache) == [11]
    assert cache.counters().scratch_rounds == 11 + 11


def test_scratch_is_shared_by_layers_of_different_sizes() -> None:
    cache, _ = cache_of(1, widths=(16, 48, 16), scratch=3)
    for _ in range(2):
        for layer in range(3):
            use_all(cache, layer, range(N_EXPERTS))


def test_prefill_does_not_thrash() -> None:
    """Passes that use nearly everything between passes that use little: the little stays."""
    cache, _ = cache_of(4)
    for _ in range(3):
        use_all(cache, 0, [0, 1, 2, 3])
        use_all(cache, 0, range(11))
    assert cache.counters().misses == 4 + 3 * 7


# ---- admission


def test_a_newcomer_that_is_used_less_passes_through() -> None:
    cache, store = cache_of(2, policy="lfu")
    for _ in range(3):
        use_all(cache, 0, [0, 1])
    before = cache.counters()
    use_all(cache, 0, [7])
    use_all(cache, 0, [0, 8])  # 0 is in use, and 1 is used more often than 8
    assert residents(cache) == [0, 1]
    counters = cache.counters() - before
    assert (counters.misses, counters.evictions, counters.bypassed) == (2, 0, 2)
    assert counters.scratch_rounds == 2
    for _ in range(4):
        use_all(cache, 0, [8])
    assert 8 in residents(cache)
    assert len(store.fetched) == 2 + 2 + (cache.counters() - before - counters).misses


def test_what_is_in_use_stays_however_rarely_it_is_used() -> None:
    cache, _ = cache_of(2, policy="lfu")
    for _ in range(4):
        use_all(cache, 0, [5, 6])
    use_all(cache, 0, [0])  # passes through
    cache.clear()
    use_all(cache, 0, [0, 1])
    for _ in range(4):
        use_all(cache, 0, [5])  # takes the slot of 0, which has the smaller id
    assert residents(cache) == [1, 5]
    with closing(cache.use(0, [1, 8, 9], [1, 9, 9])) as batches:
        for batch in batches:
            check_batch(batch, 0)
            assert 1 in residents(cache)


@pytest.mark.parametrize("policy", LIVE_RULES)
def test_a_prefetched_expert_is_there_when_it_is_used(policy: str) -> None:
    """Whatever the policy thinks of it: what was fetched early does not compete."""
    cache, _ = cache_of(2, policy=policy)
    for _ in range(5):
        use_all(cache, 0, [0, 1])
    cache.begin_pass()
    assert cache.prefetch(0, [7]) == 64
    before = cache.counters()
    use_all(cache, 0, [7])
    counters = cache.counters() - before
    assert (counters.hits, counters.misses, counters.prefetch_hits) == (1, 0, 1)


# ---- prefetch


def test_prefetched_experts_are_hits() -> None:
    cache, store = cache_of(widths=(16, 16))
    cache.begin_pass()
    assert cache.prefetch(1, [4, 2]) == 128
    assert cache.prefetch(1, [2, 4]) == 0
    use_all(cache, 0, [1])
    use_all(cache, 1, [2, 3])
    cache.end_pass()
    counters = cache.counters()
    assert (counters.hits, counters.misses, counters.lookups) == (1, 2, 3)
    assert (counters.prefetched, counters.prefetch_hits) == (2, 1)
    assert (counters.prefetch_bytes, counters.wasted_prefetch_bytes) == (128, 64)
    assert counters.bytes == 4 * 64 == store.counters().bytes
    # What was wasted stays, and may serve later as any other.
    assert residents(cache, 1) == [2, 3, 4]
    use_all(cache, 1, [4])
    assert cache.counters().prefetch_hits == 1
    assert cache.counters().wasted_prefetch_bytes == 64


def test_a_prefetched_expert_counts_once() -> None:
    cache, _ = cache_of()
    cache.prefetch(0, [1])
    use_all(cache, 0, [1])
    use_all(cache, 0, [1])
    cache.end_pass()
    assert cache.counters().prefetch_hits == 1
    assert cache.counters().wasted_prefetch_bytes == 0


def test_the_next_pass_ends_the_last() -> None:
    cache, _ = cache_of()
    cache.begin_pass()
    cache.prefetch(0, [1])
    cache.begin_pass()
    assert cache.counters().wasted_prefetch_bytes == 64
    use_all(cache, 0, [1])
    assert cache.counters().prefetch_hits == 0


def test_prefetch_spares_what_the_pass_is_expected_to_use() -> None:
    cache, store = cache_of(3)
    use_all(cache, 0, [0, 1, 2])
    cache.begin_pass()
    assert cache.prefetch(0, [0, 5]) == 64  # 0 is there and wanted
    assert 0 in residents(cache)
    assert cache.prefetch(0, [6, 7, 8], spared=[0]) == 64  # neither 0 nor 5 makes room for these
    assert residents(cache) == [0, 5, 6]
    store.drain()
    cache.begin_pass()
    assert cache.prefetch(0, [7, 8, 9, 10]) == 3 * 64
    assert residents(cache) == [7, 8, 9]  # the likeliest


def test_prefetch_spares_what_is_in_use() -> None:
    cache, _ = cache_of(3, widths=(16, 16))
    use_all(cache, 0, [0, 1, 2])
    with closing(cache.use(0, [0, 1], [1, 1])) as batches:
        batch = next(batches)
        assert cache.prefetch(0, [4, 5, 6]) == 64
        check_batch(batch, 0)
        assert residents(cache) == [0, 1, 4]


def test_prefetch_does_not_wait_for_what_is_under_way() -> None:
    cache, store = cache_of(2)
    cache.prefetch(0, [0, 1])
    cache.begin_pass()
    assert cache.prefetch(0, [2]) == 0
    assert [t.over for t in store.under_way] == [False, False]


def test_a_miss_takes_the_slot_of_a_wrong_prefetch() -> None:
    cache, store = cache_of(2)
    cache.prefetch(0, [0, 1])
    store.drain()
    use_all(cache, 0, [5, 6])
    counters = cache.counters()
    assert counters.evictions == 2
    assert counters.wasted_prefetch_bytes == 128
    cache.end_pass()
    assert cache.counters().wasted_prefetch_bytes == 128  # not twice


def test_prefetch_takes_arrays() -> None:
    cache, _ = cache_of()
    assert cache.prefetch(0, np.array([3, 4, 3])) == 128
    use_all(cache, 0, [3, 4])
    assert cache.counters().prefetch_hits == 2


def test_what_was_fetched_early_in_vain_is_known_when_the_layer_is_used() -> None:
    cache, _ = cache_of()
    cache.prefetch(0, [1, 2])
    use_all(cache, 0, [1])
    assert cache.counters().wasted_prefetch_bytes == 64
    use_all(cache, 0, [2])  # it stayed
    counters = cache.counters()
    assert (counters.misses, counters.prefetch_hits) == (0, 1)
    assert counters.wasted_prefetch_bytes == 64


def test_what_has_not_begun_is_given_up_if_the_layer_does_not_use_it() -> None:
    cache, store = cache_of(2)
    use_all(cache, 0, [0, 1])
    cache.prefetch(0, [5, 6])
    cancelled = store.under_way[1]
    cancelled.begun = False
    use_all(cache, 0, [5])
    assert residents(cache) == [5]
    assert cancelled not in store.under_way
    counters = cache.counters()
    assert (counters.prefetched, counters.prefetch_hits) == (1, 1)
    assert (counters.bytes, counters.wasted_prefetch_bytes) == (3 * 64, 0)
    use_all(cache, 0, [6])
    assert cache.counters().misses == 3


def test_what_has_not_begun_is_promoted_if_the_layer_uses_it() -> None:
    cache, store = cache_of()
    cache.prefetch(0, [5, 6])
    waiting = store.under_way[1]
    waiting.begun = False
    use_all(cache, 0, [6])
    assert waiting.begun


def test_the_caller_is_told_what_still_comes_before_it_is_waited_for() -> None:
    cache, store = cache_of(2, scratch=1)
    use_all(cache, 0, [0])
    coming = []

    def meanwhile(n: int) -> None:
        coming.append((n, len(store.under_way)))

    with closing(cache.use(0, [0, 1, 2, 3], [1] * 4, meanwhile)) as batches:
        for batch in batches:
            check_batch(batch, 0)
            assert len(coming) == 1
    assert coming == [(3, 2)]  # one in a slot and one in the scratch slab; the third has no place


def test_hidden_time_is_that_of_a_transfer_for_each_expert_that_was_there() -> None:
    cache, store = cache_of()
    use_all(cache, 0, [0])
    store.seconds_per_fetch = 3.0
    cache.end_pass()
    assert cache.transfer_seconds(0) == 3.0
    cache.prefetch(0, [4, 5, 6])
    store.drain()
    use_all(cache, 0, [4, 5])
    assert cache.counters().hidden_seconds == 6.0


# ---- failures


def test_a_failed_fetch_leaves_nothing_behind() -> None:
    cache, store = cache_of()
    use_all(cache, 0, [0])
    store.failing.add((0, 2))
    with pytest.raises(StoreError, match="layer 0, expert 2"):
        use_all(cache, 0, [0, 1, 2, 3])
    assert 2 not in residents(cache)
    use_all(cache, 0, [0, 1, 2, 3])
    assert cache.counters().lookups == 9


def test_a_failed_fetch_in_the_scratch_slab() -> None:
    cache, store = cache_of(1)
    use_all(cache, 0, [0])
    for bad in range(1, N_EXPERTS):
        store.failing.add((0, bad))
        with pytest.raises(StoreError):
            use_all(cache, 0, range(N_EXPERTS))
        store.failing.clear()
        use_all(cache, 0, range(N_EXPERTS))
        assert residents(cache) == [0]


def test_a_failed_prefetch_shows_when_the_expert_is_used() -> None:
    cache, store = cache_of()
    store.failing.add((0, 2))
    cache.prefetch(0, [2])
    with pytest.raises(StoreError):
        use_all(cache, 0, [2])
    use_all(cache, 0, [2])


def test_a_failed_prefetch_nobody_used_is_dropped_at_the_end_of_the_pass() -> None:
    cache, store = cache_of()
    store.failing.add((0, 2))
    cache.prefetch(0, [2, 3])
    store.drain()
    cache.end_pass()
    assert residents(cache) == [3]
    use_all(cache, 0, [2, 3])
    assert cache.counters().misses == 1


def test_a_closed_store() -> None:
    cache, store = cache_of(2)
    use_all(cache, 0, [0, 1])
    store.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="closed"):
            use_all(cache, 0, [0, 5])
        with pytest.raises(StoreError, match="closed"):
            cache.prefetch(0, [7])
    use_all(cache, 0, residents(cache))  # what is there is there
    counters = cache.counters()
    assert counters.bytes == 2 * 64


def test_a_slot_taken_for_a_fetch_that_could_not_begin_is_not_lost() -> None:
    cache, store = cache_of(2)

    def refuse(moment: str) -> None:
        if moment == "before":
            raise StoreError("no")

    store.on_fetch = refuse
    for _ in range(5):
        with pytest.raises(StoreError):
            use_all(cache, 0, [0, 1])
    store.on_fetch = lambda moment: None
    use_all(cache, 0, [0, 1])
    assert residents(cache) == [0, 1]


# ---- giving up half-way


def test_closing_releases_what_was_in_use() -> None:
    cache, store = cache_of(2)
    batches = cache.use(0, [0, 1], [1, 1])
    next(batches)
    batches.close()
    store.drain()
    use_all(cache, 0, [5, 6])
    assert residents(cache) == [5, 6]


def test_closing_before_the_start() -> None:
    cache, store = cache_of(2)
    cache.use(0, [0, 1], [1, 1]).close()
    assert store.fetched == []
    assert cache.counters().lookups == 0


def test_an_iterator_that_is_kept_does_not_block_the_cache() -> None:
    """A traceback may keep it alive for long; the next use takes over."""
    cache, _ = cache_of(2)
    kept = cache.use(0, [0, 1], [1, 1])
    next(kept)
    use_all(cache, 0, [5, 6])
    with pytest.raises(BusyError, match="hold its lock"):
        next(kept)
    use_all(cache, 0, [5, 6])


def test_scratch_slots_of_an_abandoned_use_are_not_written_to_late() -> None:
    cache, store = cache_of(1, scratch=2)
    use_all(cache, 0, [0])
    batches = cache.use(0, range(6), [1] * 6)
    next(batches)
    batches.close()
    assert len(store.under_way) == 2  # both on their way into the scratch slab
    use_all(cache, 0, [0, 7, 8, 9])


def test_two_uses_at_once_are_told() -> None:
    cache, _ = cache_of(4, widths=(16, 16))
    outer = cache.use(0, [0, 1], [1, 1])
    next(outer)
    inner = cache.use(1, [0, 1], [1, 1])
    next(inner)
    with pytest.raises(BusyError):
        next(outer)
    list(inner)


# ---- views and counters


def test_resident_is_a_read_only_live_view() -> None:
    cache, _ = cache_of()
    view = cache.resident
    assert view.shape == (1, N_EXPERTS)
    assert view.dtype == np.bool_
    assert not view.any()
    use_all(cache, 0, [3])
    assert np.flatnonzero(view[0]).tolist() == [3]
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = True


def test_what_is_under_way_is_resident() -> None:
    cache, _ = cache_of()
    cache.prefetch(0, [3])
    assert residents(cache) == [3]


def test_what_passes_through_scratch_is_not_resident() -> None:
    cache, _ = cache_of(1)
    use_all(cache, 0, [0])
    for _ in cache.use(0, range(5), [1] * 5):
        assert residents(cache) == [0]


def test_counters_subtract_and_reset() -> None:
    cache, _ = cache_of()
    use_all(cache, 0, [0, 1])
    first = cache.counters()
    use_all(cache, 0, [1, 2])
    delta = cache.counters() - first
    assert (delta.lookups, delta.hits, delta.misses, delta.bytes) == (2, 1, 1, 64)
    cache.reset_counters()
    assert cache.counters() == CacheCounters()
    assert residents(cache) == [0, 1, 2]


def test_waiting_is_counted() -> None:
    cache, _ = cache_of()
    use_all(cache, 0, [0])
    waited = cache.counters().wait_seconds
    assert waited > 0.0
    use_all(cache, 0, [0])
    assert cache.counters().wait_seconds == waited


def test_bytes_are_those_of_the_link() -> None:
    store = ManualStore(layouts_of([16, 16]), 4, moved_bytes=[7, 1000])
    cache = ExpertCache(store, [4, 4], scratch=1)
    use_all(cache, 0, [0, 1])
    use_all(cache, 1, [0])
    cache.prefetch(0, [2])
    counters = cache.counters()
    assert (counters.bytes, counters.prefetch_bytes) == (3 * 7 + 1000, 7)


def test_clear() -> None:
    cache, store = cache_of(2)
    use_all(cache, 0, [0, 1])
    cache.prefetch(0, [5])
    before = cache.counters()
    cache.clear()
    assert residents(cache) == []
    assert store.under_way == []
    assert cache.counters() == before
    use_all(cache, 0, [0, 1])
    assert (cache.counters() - before).misses == 2
    cache.end_pass()
    assert cache.counters().wasted_prefetch_bytes == 0
    batches = cache.use(0, [0], [1])
    next(batches)
    with pytest.raises(BusyError, match="in use"):
        cache.clear()
    batches.close()
    cache.clear()


def test_a_dropped_cache_is_freed_at_once() -> None:
    """A reference cycle would keep slabs of many gigabytes until the garbage collector runs."""
    cache, _ = cache_of()
    use_all(cache, 0, range(8))
    gone = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert gone() is None
    finally:
        gc.enable()


# ---- arguments


@pytest.mark.parametrize(
    ("experts", "message"),
    [([0, 12], "from 0 to 11, got 0 to 12"), ([-1], "got -1 to -1"), ([1, 1], "name each once")],
)
def test_bad_experts(experts: list[int], message: str) -> None:
    cache, _ = cache_of()
    with pytest.raises(InvalidInputError, match=message):
        cache.use(0, experts, [1] * len(experts))


def test_bad_layer_and_demand() -> None:
    cache, _ = cache_of()
    for layer in (-1, 1):
        with pytest.raises(InvalidInputError, match=f"layer {layer} is not there"):
            cache.use(layer, [0], [1])
        with pytest.raises(InvalidInputError, match=f"layer {layer} is not there"):
            cache.prefetch(layer, [0])
    with pytest.raises(InvalidInputError, match="experts of layer 0 must be from 0"):
        cache.prefetch(0, [12])
    with pytest.raises(InvalidInputError, match="the demand for 2"):
        cache.use(0, [0], [1, 1])


@pytest.mark.parametrize("slots", [0, -1, 13, True, 2.0, math.nan, "4", None])
def test_bad_slots(slots: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"slots\[0\] must be a whole number from 1 to 12"):
        cache_of([slots])


def test_slots_for_other_layers() -> None:
    with pytest.raises(InvalidInputError, match="slots are given for 2 layers, the model has 1"):
        cache_of([4, 4])


@pytest.mark.parametrize("scratch", [0, -1, True, 1.5, None])
def test_bad_scratch(scratch: Any) -> None:
    with pytest.raises(InvalidInputError, match="scratch must be a whole number of at least 1"):
        cache_of(scratch=scratch)


def test_no_scratch_is_needed_where_everything_fits() -> None:
    cache, _ = cache_of(12, scratch=0)
    use_all(cache, 0, range(12))


def test_unknown_policy() -> None:
    with pytest.raises(InvalidInputError, match="cache policy 'best' is unknown"):
        cache_of(policy="best")


def test_a_rule_that_must_know_the_passes() -> None:
    with pytest.raises(InvalidInputError, match="'belady' must know all passes beforehand"):
        cache_of(policy="belady")


def test_another_device() -> None:
    with pytest.raises(InvalidInputError, match="the store brings experts to cpu"):
        cache_of(device="meta")


def test_a_cache_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "available_bytes", lambda: 300)
    with pytest.raises(InvalidInputError, match=r"384 bytes.*does not fit.*300 are available"):
        cache_of(4, scratch=2)
    monkeypatch.setattr(slabs, "available_bytes", lambda: None)
    cache_of(4, scratch=2)


def test_made_in_inference_mode_and_used_outside() -> None:
    with torch.inference_mode():
        cache, _ = cache_of(2)
        use_all(cache, 0, [0, 1])
    use_all(cache, 0, [2, 3])
    with torch.inference_mode():
        use_all(cache, 0, [4, 5])


def test_default_scratch() -> None:
    assert default_scratch(64, 4) == 8
    assert default_scratch(8, 1) == 2
    assert default_scratch(8, 8) == 8
    assert default_scratch(1, 1) == 1
