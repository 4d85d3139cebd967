"""The simulated LRU cache: invariants, and the same as one made of dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt.replay.caches.lru import LRUCache


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, list[NDArray[np.bool_]]]:
    n_layers = draw(st.integers(1, 3))
    n_experts = draw(st.integers(1, 7))
    slots = draw(st.integers(0, n_experts))
    cells = st.lists(st.booleans(), min_size=n_layers * n_experts, max_size=n_layers * n_experts)
    passes = draw(st.lists(cells, min_size=1, max_size=12))
    return slots, [np.array(p, dtype=np.bool_).reshape(n_layers, n_experts) for p in passes]


@given(workloads())
def test_same_as_dictionaries(workload: tuple[int, list[NDArray[np.bool_]]]) -> None:
    slots, passes = workload
    cache = LRUCache(*passes[0].shape, slots)
    stamps: list[dict[int, int]] = [{} for _ in passes[0]]
    for number, used in enumerate(passes, start=1):
        missed = cache.use(used)
        for layer, stamp in enumerate(stamps):
            ids = np.flatnonzero(used[layer]).tolist()
            assert np.flatnonzero(missed[layer]).tolist() == [e for e in ids if e not in stamp]
            stamp.update(dict.fromkeys(ids, number))
            for e in sorted(stamp, key=lambda e: (stamp[e], e))[: max(len(stamp) - slots, 0)]:
                del stamp[e]
            assert np.flatnonzero(cache.resident[layer]).tolist() == sorted(stamp)
            assert {e: cache.stamps[layer, e] for e in stamp} == stamp


@given(workloads())
def test_invariants(workload: tuple[int, list[NDArray[np.bool_]]]) -> None:
    slots, passes = workload
    cache = LRUCache(*passes[0].shape, slots)
    for used in passes:
        before = cache.resident
        missed = cache.use(used)
        after = cache.resident
        assert (after.sum(axis=1) <= slots).all()
        assert not (missed & ~used).any()
        assert (missed.sum(axis=1) >= used.sum(axis=1) - slots).all()
        # Nothing comes in unused, and room is never left while something was thrown out.
        assert not (after & ~before & ~used).any()
        assert (after.sum(axis=1) == np.minimum((before | used).sum(axis=1), slots)).all()
        # What stayed is at least as recent as what went.
        for layer in range(len(used)):
            gone = (before | used)[layer] & ~after[layer]
            if gone.any():
                assert not (used[layer] & gone).any() or (after[layer] <= used[layer]).all()
        assert not after.flags.writeable


def test_equal_stamps_evict_the_smallest_id_first() -> None:
    cache = LRUCache(1, 6, 2)
    cache.use(np.array([[True, True, False, True, True, False]]))
    assert np.flatnonzero(cache.resident[0]).tolist() == [3, 4]


def test_the_least_recent_goes_whatever_its_id() -> None:
    cache = LRUCache(1, 4, 2)
    for expert in (3, 0, 1):
        used = np.zeros((1, 4), dtype=np.bool_)
        used[0, expert] = True
        cache.use(used)
    assert np.flatnonzero(cache.resident[0]).tolist() == [0, 1]


def test_everything_stays_when_everything_fits() -> None:
    cache = LRUCache(2, 3, 3)
    everything = np.ones((2, 3), dtype=np.bool_)
    assert cache.use(everything).all()
    assert not cache.use(everything).any()


def test_no_slots_keep_nothing() -> None:
    cache = LRUCache(1, 3, 0)
    used = np.array([[True, False, True]])
    assert (cache.use(used) == used).all()
    assert (cache.use(used) == used).all()
    assert not cache.resident.any()
