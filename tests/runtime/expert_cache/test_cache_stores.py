"""The cache over the real stores, from several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from manual_store import LIVE_RULES
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.errors import BusyError, StoreError
from specfit_runtime.expert_cache import ExpertCache
from specfit_runtime.stores import ExpertStore, open_store

N_LAYERS, N_EXPERTS = 2, 8


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> TinyExperts:
    folder = tmp_path_factory.mktemp("experts")
    return write_experts(folder, n_layers=N_LAYERS, n_experts=N_EXPERTS)


def _open_slow_ram(experts: TinyExperts) -> ExpertStore:
    # 20 microseconds per expert, one after the other.
    bandwidth = float(experts.index.record_bytes[0]) / 20e-6
    return open_store("ram", experts.index, link_bandwidth=bandwidth)


OPEN: dict[str, Callable[[TinyExperts], ExpertStore]] = {
    "ram": lambda experts: open_store("ram", experts.index),
    "disk": lambda experts: open_store("disk", experts.index),
    "link": _open_slow_ram,
}


@pytest.fixture(params=OPEN)
def store(request: pytest.FixtureRequest, experts: TinyExperts) -> Iterator[ExpertStore]:
    with OPEN[request.param](experts) as opened:
        yield opened


def random_uses(cache: ExpertCache, experts: TinyExperts, seed: int, lock: Any) -> int:
    """Use random experts, check what the batches hold; return how often another use cut in."""
    random, busy = Random(seed), 0
    for _ in range(40):
        layer = random.randrange(N_LAYERS)
        used = sorted(random.sample(range(N_EXPERTS), random.randint(1, N_EXPERTS)))
        seen: list[int] = []
        try:
            with lock, closing(cache.use(layer, used, [1] * len(used))) as batches:
                for batch in batches:
                    copies = [batch.slab[slot].clone() for slot in batch.slots]
                    if cache._slots.in_use is not None and lock is cache.lock:
                        for expert, copy in zip(batch.experts, copies, strict=True):
                            assert experts.holds(copy, layer, expert)
                    seen += batch.experts
            assert sorted(seen) == used
        except BusyError:
            busy += 1
    return busy


@pytest.mark.parametrize("policy", LIVE_RULES)
def test_every_batch_holds_what_it_names(
    store: ExpertStore, experts: TinyExperts, policy: str
) -> None:
    cache = ExpertCache(store, [3, 5], policy=policy, scratch=2)
    assert random_uses(cache, experts, 0, cache.lock) == 0
    counters = cache.counters()
    store.drain()
    assert counters.lookups == counters.hits + counters.misses
    assert counters.bytes == store.counters().bytes


def test_threads_that_hold_the_lock(store: ExpertStore, experts: TinyExperts) -> None:
    cache = ExpertCache(store, [3, 5], scratch=2)
    stop = False

    def prefetch() -> None:
        random = Random(1)
        while not stop:
            cache.prefetch(random.randrange(N_LAYERS), random.sample(range(N_EXPERTS), 3))
            cache.begin_pass()

    with ThreadPoolExecutor(4) as pool:
        ahead = pool.submit(prefetch)
        try:
            jobs = [pool.submit(random_uses, cache, experts, s, cache.lock) for s in range(3)]
            assert [job.result() for job in jobs] == [0, 0, 0]
        finally:
            stop = True
        ahead.result()
    store.drain()
    counters = cache.counters()
    assert counters.lookups == counters.hits + counters.misses
    assert counters.bytes == store.counters().bytes


def test_threads_without_the_lock_are_told(store: ExpertStore, experts: TinyExperts) -> None:
    """Whoever was cut in on gets an error instead of a result; the cache stays right."""
    cache = ExpertCache(store, [3, 5], scratch=2)
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(random_uses, cache, experts, s, nullcontext()) for s in range(3)]
        for job in jobs:
            job.result()
    assert random_uses(cache, experts, 9, cache.lock) == 0


def test_a_store_closed_in_between(experts: TinyExperts) -> None:
    store = open_store("disk", experts.index)
    cache = ExpertCache(store, [3, 5], scratch=2)
    cache.prefetch(0, [0, 1, 2])
    store.close()
    with pytest.raises(StoreError):
        for _ in cache.use(0, range(N_EXPERTS), [1] * N_EXPERTS):
            pass
    with pytest.raises(StoreError):
        for _ in cache.use(1, [0], [1]):
            pass


def test_a_truncated_file(tmp_path: Path) -> None:
    """Experts that were read before the file was cut off go on working; others are told."""
    experts = write_experts(tmp_path, n_layers=1, n_experts=N_EXPERTS, n_files=1)
    with open_store("disk", experts.index) as store:
        cache = ExpertCache(store, [N_EXPERTS], scratch=2)
        for _ in cache.use(0, [0, 1], [1, 1]):
            pass
        (path,) = experts.index.files
        path.write_bytes(path.read_bytes()[:-40])
        for _ in range(2):
            with pytest.raises(StoreError, match="experts-0"):
                for _ in cache.use(0, [0, 1, 7], [1] * 3):
                    pass
            assert cache.resident[0].tolist() == [True, True] + [False] * 6
        for batch in cache.use(0, [0, 1], [1, 1]):
            for expert, slot in zip(batch.experts, batch.slots, strict=True):
                assert experts.holds(batch.slab[slot], 0, expert)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["pinned", "ram", "disk"])
def test_slots_on_cuda(tmp_path: Path, name: str) -> None:
    """Compute that still reads a slot is over before the slot is overwritten.

    Large matrix products keep the stream busy for longer than the copies take, so that a copy that
    did not wait for them would change what they read.
    """
    experts = write_experts(
        tmp_path, n_layers=1, n_experts=N_EXPERTS, hidden=512, inner=256, stored=torch.float32
    )
    busy = torch.randn(4096, 4096, device="cuda")
    with open_store(name, experts.index, device="cuda") as store:
        cache = ExpertCache(store, [1], scratch=2)
        random, kept = Random(0), []
        for _ in range(30):
            used = sorted(random.sample(range(N_EXPERTS), random.randint(1, N_EXPERTS)))
            for batch in cache.use(0, used, [1] * len(used)):
                busy @ busy
                for expert, slot in zip(batch.experts, batch.slots, strict=True):
                    kept.append((expert, batch.slab[slot].clone()))
        for expert, copy in kept:
            assert experts.holds(copy, 0, expert)
        counters = cache.counters()
        assert counters.wait_seconds > 0.0
        assert counters.bytes == store.counters().bytes
