"""In which order the cache asks a CUDA device for what; the device is played, no GPU is needed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from manual_store import LIVE_RULES
from played_cuda import Device, play
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.expert_cache import ExpertCache, slabs
from specfit_runtime.stores import PinnedStore

N_EXPERTS = 8


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    played = play(monkeypatch)
    allocate = slabs.allocate
    monkeypatch.setattr(
        slabs,
        "allocate",
        lambda shapes, dtypes, device: allocate(shapes, dtypes, torch.device("cpu")),
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: played.run())
    return played


@pytest.fixture
def experts(tmp_path: Path) -> TinyExperts:
    return write_experts(tmp_path, n_layers=2, n_experts=N_EXPERTS)


class Computation:
    """Reads slots when the device gets to it, not when it is asked to."""

    def __init__(self, device: Device, experts: TinyExperts) -> None:
        self.device, self.experts = device, experts
        self.results: list[bool] = []
        self.asked = 0

    def read(self, slot: torch.Tensor, layer: int, expert: int) -> None:
        def do() -> bool:
            self.results.append(self.experts.holds(slot, layer, expert))
            return True

        self.asked += 1
        self.device.main.work.append(do)

    def check(self) -> None:
        self.device.run()
        assert len(self.results) == self.asked
        assert all(self.results)


def some_steps(device: Device, random: Random) -> None:
    for _ in range(random.randrange(4)):
        random.choice(device.streams).step()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slots", [[1, 2], [3, 8]])
def test_no_slot_is_overwritten_before_it_was_read(
    experts: TinyExperts, device: Device, slots: list[int], seed: int
) -> None:
    """Hits, misses, prefetches, large passes and uses given up, on a device that lags behind."""
    random = Random(seed)
    computation = Computation(device, experts)
    policy = LIVE_RULES[seed % len(LIVE_RULES)]
    with PinnedStore(experts.index) as store:
        cache = ExpertCache(store, slots, policy=policy, scratch=2)
        for _ in range(25):
            layer = random.randrange(2)
            if random.random() < 0.3:
                cache.begin_pass()
            if random.random() < 0.5:
                cache.prefetch(layer, random.sample(range(N_EXPERTS), 2))
            used = sorted(random.sample(range(N_EXPERTS), random.randint(1, N_EXPERTS)))
            stop = random.choice([1, 3, 99, 99])
            with closing(cache.use(layer, used, [1] * len(used))) as batches:
                for n, batch in enumerate(batches):
                    for expert, slot in zip(batch.experts, batch.slots, strict=True):
                        computation.read(batch.slab[slot], layer, expert)
                    some_steps(device, random)
                    if n == stop:
                        break
        computation.check()
        assert cache.counters().bytes == store.counters().bytes


def test_an_iterator_that_was_not_closed(experts: TinyExperts, device: Device) -> None:
    """What it handed out last may still be read, although that was never noted."""
    computation = Computation(device, experts)
    with PinnedStore(experts.index) as store:
        cache = ExpertCache(store, [1, 1], scratch=1)
        kept: Any = cache.use(0, [3], [1])
        batch = next(kept)
        device.run()
        computation.read(batch.slab[batch.slots[0]], 0, 3)
        for batch in cache.use(0, [4], [1]):
            computation.read(batch.slab[batch.slots[0]], 0, 4)
            for stream in device.streams:
                while stream is not device.main and stream.step():
                    pass  # whatever may be copied now is
        computation.check()


def test_waiting_is_timed_on_the_device(experts: TinyExperts, device: Device) -> None:
    with PinnedStore(experts.index) as store:
        cache = ExpertCache(store, [2, 2], scratch=1)
        for _ in cache.use(0, [0], [1]):
            pass
        # The played copy takes two seconds, for which the main stream stands still.
        assert cache.counters().wait_seconds == pytest.approx(2.0)
        for _ in cache.use(0, [0], [1]):
            pass
        assert cache.counters().wait_seconds == pytest.approx(2.0)
