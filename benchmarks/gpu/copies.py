"""What the store in host memory copies per second, and what it locks."""

from __future__ import annotations

import mmap
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specfit_runtime.checkpoint import ExpertIndex
from specfit_runtime.stores import ExpertStore, PinnedStore, RamStore
from specfit_runtime.stores.host_memory import allocate

from .models import index_without_files, large_config
from .table import FAILED, FIGURE, OK, Table

if TYPE_CHECKING:
    from .runner import Machine

PART = "copies"
_REPEATS = 5


def check(machine: Machine, table: Table) -> None:
    if not table.reached(PART, "large copy, expert-sized copies", "copies", 5.0):
        return
    with table.step(PART, "large copy, expert-sized copies", "copies"):
        index, slabs = one_layer(machine)
        with open_memory_store(machine, index, slabs) as store:
            if machine.cuda:
                _report_locked(table, index, slabs)
            slots = torch.empty(
                min(16, index.n_experts),
                index.layouts[0].n_elements,
                dtype=slabs[0].dtype,
                device=machine.device,
            )
            plain = _large_copy(machine)
            record = int(index.record_bytes[0])
            seconds = [fetch_all(machine, store, slots) for _ in range(_REPEATS + 1)][1:]
            speed = index.n_experts * record / median(seconds)
            source = "page-locked" if machine.cuda else "ordinary"
            said = f"{plain / 1e9:.2f} GB/s"
            table.add(PART, f"one large copy from {source} memory", FIGURE, said)
            table.add(
                PART,
                f"store {store.name}, records of {record / 1e6:.2f} MB",
                FIGURE,
                f"{speed / 1e9:.2f} GB/s, {speed / plain:.2f} of the large copy",
            )


def one_layer(machine: Machine) -> tuple[ExpertIndex, list[Tensor]]:
    """Return a layer of experts of the large model in host memory."""
    index = index_without_files(large_config(machine.small), torch.bfloat16, n_layers=1)
    layout = index.layouts[0]
    slab = allocate(index.n_experts * layout.n_elements, layout.dtype)
    slab = slab.view(index.n_experts, layout.n_elements)
    slab.fill_(0.5)
    return index, [slab]


def open_memory_store(machine: Machine, index: ExpertIndex, slabs: list[Tensor]) -> ExpertStore:
    if machine.cuda:
        return PinnedStore.from_slabs(index, slabs, device=machine.device)
    return RamStore.from_slabs(index, slabs)


def fetch_all(machine: Machine, store: ExpertStore, slots: Tensor) -> float:
    """Fetch every expert of the first layer, and return the seconds until the last is there."""
    machine.synchronize()
    begin = perf_counter()
    for expert in range(store.index.n_experts):
        # One stream copies one after the other, so that a slot may be asked for again.
        store.fetch(0, expert, slots[expert % len(slots)])
    store.drain()
    return perf_counter() - begin


def _large_copy(machine: Machine) -> float:
    """Return the bytes per second of one large copy from torch's own page-locked memory."""
    n_bytes = 1 << (30 if machine.cuda and not machine.small else 22)
    source = torch.ones(n_bytes, dtype=torch.uint8, pin_memory=machine.cuda)
    target = torch.empty(n_bytes, dtype=torch.uint8, device=machine.device)
    seconds = []
    for _ in range(_REPEATS + 1):
        machine.synchronize()
        begin = perf_counter()
        target.copy_(source, non_blocking=True)
        machine.synchronize()
        seconds.append(perf_counter() - begin)
    return n_bytes / median(seconds[1:])


def _report_locked(table: Table, index: ExpertIndex, slabs: list[Tensor]) -> None:
    needed = index.n_experts * int(index.record_bytes.sum())
    locked = sum(-(-slab.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for slab in slabs)
    ends = all(slab.is_pinned() and slab[-1, -1:].is_pinned() for slab in slabs)
    table.add(
        PART,
        "page-locked against needed",
        OK if ends and locked <= 1.02 * needed else FAILED,
        f"{locked:,} of {needed:,} bytes, {locked / needed:.4f}; "
        + ("locked from end to end" if ends else "NOT locked from end to end"),
    )
