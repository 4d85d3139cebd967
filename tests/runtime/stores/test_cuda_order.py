"""In which order the CUDA path asks for what, on a device that is played: no GPU is needed.

The played device does nothing until it is told to, so that whatever is not waited for shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.errors import StoreError
from specfit_runtime.stores import DiskStore, PinnedStore, RamStore, _cuda, disk, pinned, ram
from specfit_runtime.stores._load import load_slabs

CPU = torch.device("cpu")


class Device:
    """Work that was enqueued, by stream; events happen when the work before them was done."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.locked: dict[int, int] = {}
        self.refuse_from = 1 << 62
        self.streams: list[Stream] = []
        self.main = Stream(self)
        self.current = self.main

    def run(self) -> None:
        """Do all that can be done."""
        done = True
        while done:
            steps = [stream.step() for stream in self.streams]  # every stream gets its turn
            done = any(steps)

    # What torch.cuda.cudart() offers.
    def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> int:
        if len(self.locked) >= self.refuse_from:
            return 2
        assert address not in self.locked
        self.locked[address] = n_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        assert all(not stream.work for stream in self.streams), "memory is still being copied"
        del self.locked[address]
        return 0


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.work: list[Callable[[], bool]] = []
        device.streams.append(self)

    def step(self) -> bool:
        if self.work and self.work[0]():
            del self.work[0]
            return True
        return False

    def wait_event(self, event: Event) -> None:
        self.work.append(event.query)

    def synchronize(self) -> None:
        self.device.run()
        assert not self.work


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.happened: float | None = None
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream

        def happen() -> bool:
            self.happened = stream.device.clock
            return True

        stream.work.append(happen)

    def query(self) -> bool:
        return self.happened is not None

    def synchronize(self) -> None:
        assert self.stream is not None
        while not self.query():
            assert self.stream.step(), "waits for ever"

    def elapsed_time(self, end: Event) -> float:
        assert self.timed
        assert end.timed
        assert self.happened is not None
        assert end.happened is not None
        return (end.happened - self.happened) * 1e3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    played = Device()
    real_copy = torch.Tensor.copy_

    @contextmanager
    def as_current(stream: Stream) -> Iterator[None]:
        before, played.current = played.current, stream
        try:
            yield
        finally:
            played.current = before

    def copy(out: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if played.current is played.main:
            return real_copy(out, source)
        assert non_blocking

        def do() -> bool:
            real_copy(out, source)
            played.clock += 2.0
            return True

        played.current.work.append(do)
        return out

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(played))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", as_current)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: played.main)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: played)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    for module in (disk, ram):
        monkeypatch.setattr(module, "open_stream", lambda device: _cuda.CopyStream(device))
    for module in (disk, ram, pinned):
        monkeypatch.setattr(module, "check_fetch", lambda *arguments: None)

    class PlayedDevice:
        type = "cuda"

    monkeypatch.setattr(pinned, "checked_device", lambda device: PlayedDevice())
    return played


@pytest.fixture
def experts(tmp_path: Path) -> TinyExperts:
    return write_experts(tmp_path)


STORES = (DiskStore, RamStore, PinnedStore)


@pytest.mark.parametrize("kind", STORES)
def test_the_main_stream_waits_for_the_copy_and_the_copy_for_the_slot(
    kind: type[DiskStore], experts: TinyExperts, device: Device
) -> None:
    slot = experts.slots(1)[0]
    with kind(experts.index, io_threads=1) as store:
        free = Event()  # the slot is read until then
        ticket = store.fetch(0, 3, slot, free)  # type: ignore[arg-type]
        ticket.wait()
        device.run()
        assert not ticket.done()
        assert bool((slot == 1).all())  # not overwritten before its time
        assert device.main.work  # what is computed next waits, too
        free.record(device.main)
        device.main.work.insert(0, device.main.work.pop())
        device.run()
        assert ticket.done()
        assert not device.main.work
        assert experts.holds(slot, 0, 3)


@pytest.mark.parametrize("kind", STORES)
def test_records_are_not_mixed_up_when_the_device_is_late(
    kind: type[DiskStore], experts: TinyExperts, device: Device
) -> None:
    # More fetches than there are page-locked buffers, while the device has done nothing.
    slots = experts.slots(6)
    with kind(experts.index, io_threads=1) as store:
        tickets = [store.fetch(1, e, slots[e]) for e in range(6)]
        for ticket in tickets:
            ticket.wait()
        device.run()
        for e in range(6):
            assert tickets[e].done()
            assert experts.holds(slots[e], 1, e)
        assert store.counters().fetches == 6


@pytest.mark.parametrize("kind", STORES)
def test_drain_waits_for_the_device(
    kind: type[DiskStore], experts: TinyExperts, device: Device
) -> None:
    slots = experts.slots(6)
    with kind(experts.index, io_threads=2) as store:
        for e in range(6):
            store.fetch(0, e, slots[e])
        store.drain()
        for e in range(6):
            assert experts.holds(slots[e], 0, e)


@pytest.mark.parametrize("kind", [DiskStore, PinnedStore])
@pytest.mark.parametrize("dropped", [False, True])
def test_memory_is_unlocked_when_nothing_is_copied_from_it(
    kind: type[DiskStore], experts: TinyExperts, device: Device, dropped: bool
) -> None:
    store = kind(experts.index, io_threads=1)
    assert device.locked
    slots = experts.slots(2)
    for e in range(2):
        store.fetch(0, e, slots[e]).wait()
    if dropped:
        del store
    else:
        store.close()
        store.close()
    assert device.locked == {}
    assert experts.holds(slots[1], 0, 1)


def test_whole_layers_are_locked_and_no_byte_more(experts: TinyExperts, device: Device) -> None:
    with PinnedStore(experts.index):
        record = int(experts.index.record_bytes[0])
        assert sorted(device.locked.values()) == [6 * record] * 2


def test_slabs_made_elsewhere_are_locked_where_they_are(
    experts: TinyExperts, device: Device
) -> None:
    slabs = load_slabs(experts.index, "test", 1)
    slot = experts.slots(1)[0]
    with PinnedStore.from_slabs(experts.index, slabs) as store:
        assert sorted(device.locked) == sorted(slab.data_ptr() for slab in slabs)
        store.fetch(1, 5, slot)
        device.run()
        assert experts.holds(slot, 1, 5)
    assert device.locked == {}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_is_closed_writes_to_no_slot_any_more(
    kind: type[DiskStore], experts: TinyExperts, device: Device
) -> None:
    # The slot's memory may be given to others then.
    slot = experts.slots(1)[0]
    store = kind(experts.index, io_threads=1)
    store.fetch(0, 2, slot).wait()
    device.main.work.clear()  # the main stream does not matter here
    store.close()
    assert all(not stream.work for stream in device.streams)
    assert experts.holds(slot, 0, 2)


def test_seconds_are_those_of_the_copies(experts: TinyExperts, device: Device) -> None:
    slots = experts.slots(3)
    with PinnedStore(experts.index) as store:
        for e in range(3):
            store.fetch(0, e, slots[e])
        assert store.counters().seconds == 0.0
        device.run()
        counters = store.counters()
        assert counters.seconds == 6.0  # two each, by the played clock
        assert counters.bytes == 3 * experts.index.record_bytes[0]


@pytest.mark.parametrize("kind", [DiskStore, PinnedStore])
def test_memory_that_cannot_be_locked_is_said_and_the_rest_unlocked(
    kind: type[DiskStore], experts: TinyExperts, device: Device
) -> None:
    device.refuse_from = 1
    with pytest.raises(StoreError, match=r"cannot page-lock [\d,]+ bytes .*cudaError 2.*ram"):
        kind(experts.index)
    assert device.locked == {}
