"""Experts stay in the checkpoint's files and are read from there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from specfit_opt.arrays import frozen

from ._cuda import StagingRing
from ._local import LocalStore
from ._pool import THREADS
from ._reader import RecordReader
from .device import checked_device
from .expert_store import Ticket
from .store_kind import StoreKind

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


class DiskStore(LocalStore):
    """Reads an expert's byte ranges from the checkpoint at every fetch.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str
        Where the slots lie.
    direct_io : bool
        Read past the operating system's page cache. The bytes that are then read beside the
        expert, up to the next multiple of 4,096 on either side, are counted.
    io_threads : int
        Threads that read at the same time, >= 1.

    Raises
    ------
    InvalidInputError
        If an argument is not as it must be.
    StoreError
        If a file cannot be opened, is too short, or its file system refuses direct reads.

    Notes
    -----
    Adjacent ranges are one read, straight into the slot where the checkpoint has the run dtype and
    the slot is in host memory. The descriptors are told that access is random: without that the
    operating system reads ahead, several times what was asked for. `moved_bytes` with ``direct_io``
    is the mean over the layer's experts, rounded up. On CUDA `seconds` is the time of the reads;
    the copy to the device goes through page-locked buffers on a stream of its own.

    The files that were opened are the ones that are read until the end: a file replaced under the
    same name does not matter, one written to in place is an error.
    """

    name = "disk"

    def __init__(
        self,
        index: ExpertIndex,
        *,
        device: torch.device | str = "cpu",
        direct_io: bool = False,
        io_threads: int = 4,
    ) -> None:
        threads = THREADS(io_threads, "io_threads")
        super().__init__(index, checked_device(device), threads)
        self._direct = direct_io
        self._reader = RecordReader(index, direct_io=direct_io, on_bytes=self._meter.moved)
        self.moved_bytes = frozen(
            np.array([self._mean_bytes(layer) for layer in range(index.n_layers)], dtype=np.int64)
        )
        self._ring: StagingRing | None = None
        if self._stream is not None:
            largest = max(index.layouts, key=lambda layout: layout.n_elements)
            # Two more than there are threads: reads go on while copies are under way.
            self._ring = StagingRing(
                threads + 2, largest.n_elements, largest.dtype, self._stream
            )

    @property
    def description(self) -> str:
        """One line for reports."""
        return "disk, direct reads" if self._direct else "disk"

    def _start(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None,
        early: bool,
    ) -> Ticket:
        assert self._pool is not None
        job = partial(self._read, layer, expert, out, after)
        return self._pool.start(job, self.device, early)

    def _release(self) -> None:
        self._reader.close()
        if self._ring is not None:
            self._ring.close()

    def _read(
        self, layer: int, expert: int, out: torch.Tensor, after: torch.cuda.Event | None
    ) -> torch.cuda.Event | None:
        if self._ring is None:
            self._reader.read(layer, expert, out)
            return None
        return self._ring.pass_through(partial(self._reader.read, layer, expert), out, after)

    def _mean_bytes(self, layer: int) -> int:
        if not self._direct:
            return int(self.index.stored_bytes[layer])
        n = self.index.n_experts
        return -(-sum(self._reader.read_bytes(layer, expert) for expert in range(n)) // n)


STORE = StoreKind(
    name="disk",
    open=DiskStore,
    summary="read from the checkpoint's files at every fetch",
    takes_direct_io=True,
)
