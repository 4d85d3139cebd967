"""Experts in host memory, one slab per layer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import torch

from ..errors import InvalidInputError, StoreError
from ._local import LocalStore
from ._pool import CLOSED, THREADS
from ._reader import RecordReader
from .device import checked_device
from .host_memory import allocate, check_room

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


class SlabStore(LocalStore):
    """A store whose experts are all in host memory; see :class:`RamStore`, :class:`PinnedStore`.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str, optional
        Where the slots lie.
    io_threads : int
        Threads that read the checkpoint, >= 1.
    """

    def __init__(
        self,
        index: ExpertIndex,
        *,
        device: torch.device | str | None = None,
        io_threads: int = 4,
    ) -> None:
        target, threads = self._checked_device(device), THREADS(io_threads, "io_threads")
        self._open(index, target, load_slabs(index, self.name, threads), threads)

    @classmethod
    def from_slabs(
        cls,
        index: ExpertIndex,
        slabs: Sequence[torch.Tensor],
        *,
        device: torch.device | str | None = None,
        io_threads: int = 4,
    ) -> Self:
        """Return a store of experts that are in host memory already.

        Parameters
        ----------
        index : ExpertIndex
            Its byte ranges are not looked at.
        slabs : sequence of Tensor, each of shape (E, n_elements)
            One per layer, in the run dtype; not copied.
        device : torch.device or str, optional
            Where the slots lie.
        io_threads : int
            Threads that copy, >= 1.

        Raises
        ------
        InvalidInputError
            If a slab is not as the index says, or another argument not as it must be.
        StoreError
            If the memory is to be page-locked and cannot be.
        """
        store = cls.__new__(cls)
        target, threads = store._checked_device(device), THREADS(io_threads, "io_threads")
        store._open(index, target, checked_slabs(index, slabs), threads)
        return store

    def _open(
        self,
        index: ExpertIndex,
        device: torch.device,
        slabs: Sequence[torch.Tensor],
        threads: int,
    ) -> None:
        LocalStore.__init__(self, index, device, threads)
        self._slabs = tuple(slabs)

    def _record(self, layer: int, expert: int) -> torch.Tensor:
        try:
            return self._slabs[layer][expert]
        except IndexError:
            raise StoreError(CLOSED) from None

    def _release(self) -> None:
        self._slabs = ()

    def _checked_device(self, device: Any) -> torch.device:
        return checked_device("cpu" if device is None else device)


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
