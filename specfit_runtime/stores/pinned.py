"""All experts lie in page-locked host memory, in the run dtype."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InvalidInputError
from ._cuda import EventTicket, is_over, lock_pages, release
from ._early import EarlyQueue
from ._slabs import SlabStore
from .device import checked_device
from .expert_store import Ticket
from .store_kind import StoreKind

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


class PinnedStore(SlabStore):
    """Holds one page-locked slab per layer, read from the checkpoint once, and copies from it.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device or str, optional
        A CUDA device, by default the current one.
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
    device computes. An early one is enqueued when the copies before it are over, so that what is
    needed later need not queue behind it. `seconds` is the device's own measure, of the copies that
    have ended. The memory is mapped and then registered with CUDA, which takes whole pages and no
    more; see :func:`._cuda.lock_pages`. Slabs that were made elsewhere are locked where they are
    until the store is closed; no two of them may share a page, and they may be filled later.
    """

    name = "pinned"

    def _open(
        self,
        index: ExpertIndex,
        device: torch.device,
        slabs: Sequence[torch.Tensor],
        threads: int,
    ) -> None:
        super()._open(index, device, slabs, 0)
        # The last copy alone. No method of this is handed on: a cycle would keep a dropped store,
        # and its pages locked, until the collector runs.
        last = self._last = deque[torch.cuda.Event](maxlen=1)
        self._early = EarlyQueue(lambda: not last or is_over(last[0]))
        assert self._stream is not None  # the device is CUDA
        self._unlock = weakref.finalize(self, release, self._stream, lock_pages(slabs))

    def _start(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None,
        early: bool,
    ) -> Ticket:
        record = self._record(layer, expert)
        if early:
            return self._early.add(partial(self._copy, record, out, after))
        return self._copy(record, out, after)

    def _copy(
        self, record: torch.Tensor, out: torch.Tensor, after: torch.cuda.Event | None
    ) -> Ticket:
        assert self._stream is not None
        event = self._stream.copy(record, out, after)
        self._last.append(event)
        self._meter.moved(record.nbytes)
        self._meter.ended(0.0)
        return EventTicket(event, self.device)

    def drain(self) -> None:
        """Wait for every fetch that began; see :meth:`ExpertStore.drain`."""
        self._early.begin_all()
        super().drain()

    def close(self) -> None:
        """Finish what is under way, then release the memory; may be called again."""
        self._early.close()
        super().close()

    def _release(self) -> None:
        super()._release()
        self._unlock()

    def _checked_device(self, device: Any) -> torch.device:
        target = checked_device("cuda" if device is None else device)
        if target.type != "cuda":
            raise InvalidInputError(
                'store "pinned" is for CUDA devices, which copy from page-locked memory by '
                f'themselves; the device is {target}: use store="ram"'
            )
        return target


STORE = StoreKind(
    name="pinned",
    open=PinnedStore,
    summary="held in page-locked host memory, in the run dtype; copied beside what a GPU computes",
    needs_cuda=True,
)
