"""All experts lie in page-locked host memory, in the run dtype."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from specfit_opt.arrays import frozen

from ..errors import InvalidInputError, StoreError
from ._check import check_fetch, checked_device
from ._cuda import CopyStream, EventTicket, lock_pages, release
from ._load import checked_slabs, load_slabs
from ._meter import Meter
from ._pool import CLOSED, THREADS
from .protocol import ExpertStore, StoreCounters, Ticket
from .registry import StoreKind

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


class PinnedStore(ExpertStore):
    """Holds one page-locked slab per layer, read from the checkpoint once, and copies from it.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str
        A CUDA device.
    io_threads : int
        Threads that read the checkpoint, >= 1.

    Raises
    ------
    InvalidInputError
        If an argument is not as it must be, such as a device that is not CUDA.
    StoreError
        If the experts do not fit into the memory that is available, cannot be read, or the memory
        cannot be page-locked.

    Notes
    -----
    A fetch only enqueues a copy, on a stream of its own; the device's copy engine does it while the
    device computes. `seconds` is the device's own measure. The memory is mapped and then registered
    with CUDA, which takes whole pages and no more; see :func:`._cuda.lock_pages`.
    """

    name = "pinned"

    def __init__(
        self,
        index: ExpertIndex,
        *,
        device: torch.device | str = "cuda",
        io_threads: int = 4,
    ) -> None:
        target, threads = _cuda_device(device), THREADS(io_threads, "io_threads")
        self._open(index, target, load_slabs(index, self.name, threads))

    @classmethod
    def from_slabs(
        cls,
        index: ExpertIndex,
        slabs: Sequence[torch.Tensor],
        *,
        device: torch.device | str = "cuda",
    ) -> Self:
        """Return a store of experts that are in host memory already.

        Parameters
        ----------
        index : ExpertIndex
            Its byte ranges are not looked at.
        slabs : sequence of Tensor, each of shape (E, n_elements)
            One per layer, in the run dtype, no two of which share a page. They are page-locked
            where they are until the store is closed, and may be filled later.
        device : torch.device or str
            A CUDA device.

        Raises
        ------
        InvalidInputError
            If a slab is not as the index says, or the device is not CUDA.
        StoreError
            If the memory cannot be page-locked.
        """
        store = cls.__new__(cls)
        store._open(index, _cuda_device(device), checked_slabs(index, slabs))
        return store

    def _open(
        self, index: ExpertIndex, device: torch.device, slabs: tuple[torch.Tensor, ...]
    ) -> None:
        self.index, self.device = index, device
        self._meter = Meter()
        self._stream = CopyStream(device, self._meter)
        self._slabs = slabs
        self._release = weakref.finalize(self, release, self._stream, lock_pages(slabs))
        self.moved_bytes = frozen(np.array(index.record_bytes, dtype=np.int64))

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
    ) -> Ticket:
        """Enqueue a copy into ``out``; see :meth:`ExpertStore.fetch`."""
        check_fetch(self.index, self.device, layer, expert, out, after)
        try:
            record = self._slabs[layer][expert]
        except IndexError:
            raise StoreError(CLOSED) from None
        event = self._stream.copy(record, out, after)
        self._meter.moved(record.nbytes)
        self._meter.ended(0.0)
        return EventTicket(event, self.device)

    def counters(self) -> StoreCounters:
        """Return what was moved so far; the seconds are those of the copies that have ended."""
        self._stream.note_times()
        return self._meter.read()

    def drain(self) -> None:
        """Wait for every fetch that began; see :meth:`ExpertStore.drain`."""
        self._stream.synchronize()

    def close(self) -> None:
        """Wait for the copies and release the memory; may be called again."""
        self._slabs = ()
        self._release()


def _cuda_device(device: Any) -> torch.device:
    target = checked_device(device)
    if target.type != "cuda":
        raise InvalidInputError(
            'store "pinned" is for CUDA devices, which copy from page-locked memory by '
            f'themselves; the device is {target}: use store="ram"'
        )
    return target


STORE = StoreKind(
    name="pinned",
    open=lambda index, device, options: PinnedStore(
        index, device=device, io_threads=options.io_threads
    ),
    summary="held in page-locked host memory, in the run dtype; copied beside what a GPU computes",
    needs_cuda=True,
)
