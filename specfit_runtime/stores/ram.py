"""All experts lie in host memory, in the run dtype."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import torch

from ._copy import copy_serially
from ._pool import DoneTicket
from ._slabs import SlabStore
from .expert_store import Ticket
from .store_kind import StoreKind

# Copying this much takes 8 microseconds, handing it to a thread and being told of the end another
# 15: smaller records are copied at once, larger ones while the forward pass goes on.
_AT_ONCE = 1 << 18


class RamStore(SlabStore):
    """Holds one slab of host memory per layer, read from the checkpoint once, and copies from it.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str, optional
        Where the slots lie, by default on the CPU.
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
    Records of up to 256 KiB are copied during the call of :meth:`fetch`, early or not. Larger
    ones are copied by a thread, which releases the interpreter's lock meanwhile. CUDA copies memory
    that is not page-locked slowly: the store for CUDA is "pinned".
    """

    name = "ram"

    def _start(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None,
        early: bool,
    ) -> Ticket:
        record = self._record(layer, expert)
        if record.nbytes > _AT_ONCE or self._stream is not None:
            assert self._pool is not None
            job = partial(self._copy, record, out, after)
            return self._pool.start(job, self.device, early)
        start = perf_counter()
        self._copy(record, out, None)
        self._meter.ended(perf_counter() - start)
        return DoneTicket()

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
    open=RamStore,
    summary="held in host memory, in the run dtype; read once when the model is loaded",
)
