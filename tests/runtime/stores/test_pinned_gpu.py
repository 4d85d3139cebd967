"""The pinned store on a real device: what is locked, and what runs beside what."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from tiny_experts import write_experts

from specfit_runtime.errors import StoreError
from specfit_runtime.stores import PinnedStore, RamStore
from specfit_runtime.stores._cuda import lock_pages
from specfit_runtime.stores.host_memory import allocate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PAGE = mmap.PAGESIZE


def _torch_pinned_bytes() -> int:
    """Page-locked bytes that torch's own allocator has given out, rounded as it does."""
    return int(torch.cuda.host_memory_stats().get("active_bytes.current", 0))


def test_torch_rounds_page_locked_memory_up_to_a_power_of_two() -> None:
    # Why the store locks its memory itself. If this fails, torch has changed: it could then serve.
    before = _torch_pinned_bytes()
    held = torch.empty((5 << 20) + 1, dtype=torch.uint8, pin_memory=True)
    assert held.is_pinned()
    assert _torch_pinned_bytes() - before == 8 << 20


def test_what_is_locked_is_at_most_1_02_times_the_records(tmp_path: Path) -> None:
    # 1.15 MB per layer: the next power of two would be 1.8 times as much.
    experts = write_experts(tmp_path, n_layers=3, n_experts=12, hidden=100, inner=160)
    needed = 12 * int(experts.index.record_bytes.sum())
    before = _torch_pinned_bytes()
    with PinnedStore(experts.index) as store:
        assert _torch_pinned_bytes() == before  # none of it is torch's
        slabs = store._slabs
        assert len(slabs) == 3
        assert all(slab.is_pinned() for slab in slabs)
        assert all(slab[-1, -1:].is_pinned() for slab in slabs)
        locked = sum(-(-slab.nbytes // PAGE) * PAGE for slab in slabs)
        assert needed <= locked <= 1.02 * needed
        kept = slabs[0]
        del slabs
    assert not kept.is_pinned()


def test_memory_that_cannot_be_locked_leaves_the_device_usable() -> None:
    memory = allocate(2 * PAGE, torch.uint8)
    unlock = lock_pages([memory])
    with pytest.raises(StoreError, match="cannot page-lock"):
        lock_pages([memory])  # it is locked already
    # CUDA keeps an error until someone asks, and the next kernel asks.
    assert int(torch.ones(3, device="cuda").sum()) == 3
    unlock()


def test_memory_is_unlocked_once() -> None:
    memory = allocate(3 * PAGE + 1, torch.uint8)
    unlock = lock_pages([memory])
    assert memory.is_pinned()
    unlock()
    unlock()
    assert not memory.is_pinned()


@pytest.mark.parametrize("kind", [PinnedStore, RamStore])
def test_a_slot_is_not_overwritten_before_what_reads_it_is_over(
    tmp_path: Path, kind: type[PinnedStore]
) -> None:
    experts = write_experts(tmp_path)
    slot = experts.slots(1)[0].cuda()
    with kind(experts.index, device="cuda") as store:
        store.fetch(0, 0, slot).wait()
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # cycles: the read below happens a good while later
        seen = slot.clone()
        read = torch.cuda.Event()
        read.record()
        ticket = store.fetch(0, 1, slot, read)
        if kind is PinnedStore:
            assert not ticket.done()  # the host was not held up, and the copy waits
        ticket.wait()
        after = slot.clone()
        torch.cuda.synchronize()
        assert ticket.done()
        assert experts.holds(seen, 0, 0)
        assert experts.holds(after, 0, 1)
