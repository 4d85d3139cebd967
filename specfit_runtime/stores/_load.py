"""Reads all experts into host memory, one slab per layer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from ._host_memory import allocate, check_room
from ._reader import RecordReader

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


def load_slabs(index: ExpertIndex, store: str, threads: int) -> tuple[torch.Tensor, ...]:
    """Return per layer a slab of shape (E, n_elements) in the run dtype.

    Raises
    ------
    StoreError
        If the memory that is available does not suffice, or a file cannot be read.
    """
    check_room(sum(index.n_experts * int(size) for size in index.record_bytes), store)
    slabs = tuple(
        allocate(index.n_experts * layout.n_elements, layout.dtype).view(
            index.n_experts, layout.n_elements
        )
        for layout in index.layouts
    )
    reader = RecordReader(index, sequential=True, on_bytes=lambda n_bytes: None)
    pool = ThreadPoolExecutor(threads, thread_name_prefix=f"specfit-load-{store}")
    try:
        jobs = [
            pool.submit(reader.read, layer, expert, slab[expert])
            for layer, slab in enumerate(slabs)
            for expert in range(index.n_experts)
        ]
        for job in jobs:
            job.result()
    finally:
        # After an error or an interrupt the reads that have not begun are of no use.
        pool.shutdown(wait=True, cancel_futures=True)
        reader.close()
    return slabs
