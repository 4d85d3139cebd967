"""All experts lie in host memory, in the run dtype."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from specfit_opt.arrays import frozen

from ..errors import StoreError
from ._check import check_fetch, checked_device
from ._copy import copy_serially
from ._cuda import open_stream
from ._load import checked_slabs, load_slabs
from ._meter import Meter
from ._pool import CLOSED, THREADS, DoneTicket, FetchPool
from .protocol import ExpertStore, StoreCounters, Ticket
from .registry import StoreKind

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex

# Copying this much takes 8 microseconds, handing it to a thread and being told of the end another
# 15: smaller records are copied at once, larger ones while the forward pass goes on.
_AT_ONCE = 1 << 18


class RamStore(ExpertStore):
    """Holds one slab of host memory per layer, read from the checkpoint once, and copies from it.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str
        Where the slots lie.
    io_threads : int
        Threads that read the checkpoint, and that copy later; >= 1.

    Raises
    ------
    InvalidInputError
        If an argument is not as it must be.
    StoreError
        If the experts do not fit into the memory that is available, or cannot be read.

    Notes
    -----
    Records of up to 256 KiB are copied during the call of :meth:`fetch`. Larger ones are copied by
    a thread, which releases the interpreter's lock meanwhile. CUDA copies memory that is not
    page-locked slowly: the store for CUDA is "pinned".
    """

    name = "ram"

    def __init__(
        self,
        index: ExpertIndex,
        *,
        device: torch.device | str = "cpu",
        io_threads: int = 4,
    ) -> None:
        target, threads = checked_device(device), THREADS(io_threads, "io_threads")
        self._open(index, target, load_slabs(index, self.name, threads), threads)

    @classmethod
    def from_slabs(
        cls,
        index: ExpertIndex,
        slabs: Sequence[torch.Tensor],
        *,
        device: torch.device | str = "cpu",
        io_threads: int = 4,
    ) -> Self:
        """Return a store of experts that are in host memory already.

        Parameters
        ----------
        index : ExpertIndex
            Its byte ranges are not looked at.
        slabs : sequence of Tensor, each of shape (E, n_elements)
            One per layer, in the run dtype; not copied.
        device : torch.device or str
            Where the slots lie.
        io_threads : int
            Threads that copy, >= 1.

        Raises
        ------
        InvalidInputError
            If a slab is not as the index says, or another argument not as it must be.
        """
        store = cls.__new__(cls)
        target, threads = checked_device(device), THREADS(io_threads, "io_threads")
        store._open(index, target, checked_slabs(index, slabs), threads)
        return store

    def _open(
        self,
        index: ExpertIndex,
        device: torch.device,
        slabs: tuple[torch.Tensor, ...],
        threads: int,
    ) -> None:
        self.index, self.device = index, device
        self._meter = Meter()
        self._slabs = slabs
        self.moved_bytes = frozen(np.array(index.record_bytes, dtype=np.int64))
        self._stream = open_stream(self.device)
        self._pool = FetchPool(threads, self.name, self._meter)

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
    ) -> Ticket:
        """Copy an expert into ``out``; see :meth:`ExpertStore.fetch`."""
        check_fetch(self.index, self.device, layer, expert, out, after)
        try:
            record = self._slabs[layer][expert]
        except IndexError:
            raise StoreError(CLOSED) from None
        if record.nbytes > _AT_ONCE or self._stream is not None:
            return self._pool.start(partial(self._copy, record, out, after), self.device)
        start = perf_counter()
        self._copy(record, out, None)
        self._meter.ended(perf_counter() - start)
        return DoneTicket()

    def counters(self) -> StoreCounters:
        """Return what was moved so far."""
        return self._meter.read()

    def drain(self) -> None:
        """Wait for every fetch that began; see :meth:`ExpertStore.drain`."""
        self._pool.drain()
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Stop the threads and release the memory; may be called again."""
        self._pool.close()
        if self._stream is not None:
            # Neither the records nor the slots may go while the device still copies.
            self._stream.synchronize()
        self._slabs = ()

    def _copy(
        self, record: torch.Tensor, out: torch.Tensor, after: torch.cuda.Event | None
    ) -> torch.cuda.Event | None:
        event = None
        if self._stream is None:
            copy_serially(record, out)
        else:
            event = self._stream.copy(record, out, after)
        self._meter.moved(record.nbytes)
        return event


STORE = StoreKind(
    name="ram",
    open=lambda index, device, options: RamStore(
        index, device=device, io_threads=options.io_threads
    ),
    summary="held in host memory, in the run dtype; read once when the model is loaded",
)
