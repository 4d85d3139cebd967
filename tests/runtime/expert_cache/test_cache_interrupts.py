"""An interrupt at any point leaves the cache usable and right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from interrupts import Interrupter
from manual_store import ManualStore, ManualTicket, check_batch, layouts_of, use_all

import specfit_runtime.expert_cache
from specfit_runtime.expert_cache import ExpertCache

N_EXPERTS = 9
SLOTS = (3, 9, 1)
FILES = sorted(Path(specfit_runtime.expert_cache.__file__).parent.rglob("*.py"))


def scene(seed: int) -> tuple[ExpertCache, ManualStore, Callable[[], None]]:
    """Return a cache with a history, and passes over it to interrupt."""
    store = ManualStore(layouts_of([4, 8, 4]), N_EXPERTS, seed=seed)
    cache = ExpertCache(store, SLOTS, scratch=2)
    for layer in range(3):
        use_all(cache, layer, [0, 1, 2])
    rng = np.random.default_rng(seed)

    def passes() -> None:
        for n_used in (2, 5, 3):
            cache.begin_pass()
            for layer in range(3):
                cache.prefetch(layer, rng.permutation(N_EXPERTS)[:2].tolist())
            for layer in range(3):
                used = rng.permutation(N_EXPERTS)[:n_used].tolist()
                with closing(cache.use(layer, used, [1] * n_used)) as batches:
                    for batch in batches:
                        check_batch(batch, layer)
        cache.end_pass()

    return cache, store, passes


def check_usable(cache: ExpertCache, store: ManualStore) -> None:
    def locked() -> None:
        with cache.lock:
            free.append(True)

    free: list[bool] = []
    other = Thread(target=locked, daemon=True)
    other.start()
    other.join(10.0)
    assert free, "the lock is still held"
    counters = cache.counters()
    assert counters.lookups == counters.hits + counters.misses
    for layer in range(3):
        # The first call may find the cache torn, and must not trust what it sees.
        use_all(cache, layer, [0, 4])
        held = np.flatnonzero(cache.resident[layer]).tolist()
        assert len(held) <= SLOTS[layer]
        fetched = len(store.fetched)
        use_all(cache, layer, held)
        assert len(store.fetched) == fetched  # what claims to be there is there
        use_all(cache, layer, range(N_EXPERTS))
        use_all(cache, layer, [5])
    before = cache.counters()
    cache.begin_pass()
    cache.prefetch(0, [7, 8])
    store.drain()
    use_all(cache, 0, [7, 8])
    assert (cache.counters() - before).misses == 0


def instructions(seed: int) -> int:
    _, _, passes = scene(seed)
    interrupter = Interrupter(FILES)
    assert not interrupter.run(passes)
    return interrupter.count


def interrupt_at(points: Any, seed: int) -> None:
    interrupter = Interrupter(FILES)
    for at in points:
        cache, store, passes = scene(seed)
        assert interrupter.run(passes, at)
        check_usable(cache, store)


@pytest.mark.parametrize("seed", [0, 1])
def test_interrupted_at_some_points(seed: int) -> None:
    total = instructions(seed)
    rng = np.random.default_rng(seed)
    interrupt_at(sorted(rng.choice(np.arange(1, total + 1), size=100, replace=False)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
def test_interrupted_at_every_point(seed: int) -> None:
    interrupt_at(range(1, instructions(seed) + 1), seed)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 18))
def test_interrupted_within_a_fetch(moment: str, nth: int) -> None:
    """The store was interrupted: whether a fetch began is unknown, and its ticket is lost."""
    cache, store, passes = scene(nth)
    count = 0

    def interrupt(now: str) -> None:
        nonlocal count
        count += now == moment
        if now == moment and count == nth:
            raise KeyboardInterrupt

    store.on_fetch = interrupt
    with pytest.raises(KeyboardInterrupt):
        passes()
    store.on_fetch = lambda now: None
    check_usable(cache, store)


@pytest.mark.parametrize("nth", range(1, 12))
def test_interrupted_while_waiting(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, store, passes = scene(nth)
    count = 0
    wait = ManualTicket.wait

    def interrupted(ticket: Any) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise KeyboardInterrupt
        wait(ticket)

    with monkeypatch.context() as patch:
        patch.setattr("manual_store.ManualTicket.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            passes()
    check_usable(cache, store)


def test_interrupted_twice() -> None:
    """Once in a pass, and once while the next call mends what that tore."""
    total = instructions(0)
    interrupter = Interrupter(FILES)
    rng = np.random.default_rng(0)
    for at in rng.choice(np.arange(1, total + 1), size=30, replace=False):
        cache, store, passes = scene(0)
        assert interrupter.run(passes, at)
        interrupter.run(passes, int(rng.integers(1, 400)))
        check_usable(cache, store)
