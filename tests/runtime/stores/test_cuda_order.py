"""In which order the CUDA path asks for what, on a device that is played: no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from played_cuda import Device, Event, play
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.errors import StoreError
from specfit_runtime.stores import DiskStore, PinnedStore, RamStore
from specfit_runtime.stores._slabs import load_slabs

CPU = torch.device("cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return play(monkeypatch)


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
