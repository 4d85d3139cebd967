"""Reads all experts into host memory, one slab per layer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

from ..errors import InvalidInputError
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


def checked_slabs(index: ExpertIndex, slabs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return slabs that were made elsewhere, if they hold what the index says.

    Raises
    ------
    InvalidInputError
        If their number or one's shape, dtype, device or strides are not those of the index.
    """
    if len(slabs) != index.n_layers:
        raise InvalidInputError(
            f"{len(slabs)} slabs for {index.n_layers} MoE layers; give one per layer"
        )
    for layer, (slab, layout) in enumerate(zip(slabs, index.layouts, strict=True)):
        shape = (index.n_experts, layout.n_elements)
        if (
            tuple(slab.shape) != shape
            or slab.dtype != layout.dtype
            or slab.device.type != "cpu"
            or not slab.is_contiguous()
        ):
            raise InvalidInputError(
                f"the slab of layer {layer} must be contiguous, of shape {shape}, {layout.dtype} "
                f"and in host memory; got shape {tuple(slab.shape)}, {slab.dtype} on {slab.device}"
            )
    return tuple(slabs)
