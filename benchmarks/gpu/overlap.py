"""How much of the copying is hidden behind compute?"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from specfit_runtime.stores import ExpertStore

from .copies import fetch_all, one_layer, open_memory_store
from .table import FIGURE, Table

if TYPE_CHECKING:
    from .runner import Machine

PART = "overlap"
_REPEATS = 5


def check(machine: Machine, table: Table) -> None:
    case = "compute beside copies"
    if not table.reached(PART, case, "overlap", 5.0):
        return
    with table.step(PART, case, "overlap"):
        index, slabs = one_layer(machine)
        with open_memory_store(machine, index, slabs) as store:
            _measure(machine, table, case, store)


def _measure(machine: Machine, table: Table, case: str, store: ExpertStore) -> None:
    layout = store.index.layouts[0]
    slots = torch.empty(
        min(16, store.index.n_experts), layout.n_elements, dtype=layout.dtype, device=machine.device
    )
    size = 256 if machine.small else 4096
    a = torch.ones(size, size, dtype=torch.bfloat16, device=machine.device)
    b = torch.empty_like(a)

    def compute(n: int) -> None:
        for _ in range(n):
            torch.mm(a, a, out=b)

    def timed(work: Callable[[], object]) -> float:
        seconds = []
        for _ in range(_REPEATS + 1):
            machine.synchronize()
            begin = perf_counter()
            work()
            machine.synchronize()
            seconds.append(perf_counter() - begin)
        return median(seconds[1:])

    def copy() -> None:
        for expert in range(store.index.n_experts):
            store.fetch(0, expert, slots[expert % len(slots)])

    fetch_all(machine, store, slots)
    copying = timed(lambda: (copy(), store.drain()))
    # As long as the copies, so that all of either could be hidden behind the other.
    n = max(1, round(copying / (timed(lambda: compute(8)) / 8)))
    computing = timed(lambda: compute(n))
    both = timed(lambda: (copy(), compute(n), store.drain()))
    hidden = (computing + copying - both) / min(computing, copying)
    table.add(
        PART,
        case,
        FIGURE,
        f"compute {computing * 1e3:.2f} ms, copies {copying * 1e3:.2f} ms, both "
        f"{both * 1e3:.2f} ms: {hidden:.0%} of the shorter hidden",
    )
