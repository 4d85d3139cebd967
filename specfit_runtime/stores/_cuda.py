"""Copies from host memory to a CUDA device, beside what it computes."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch

from ..errors import StoreError
from ..forking import require_process
from ._meter import Meter
from .expert_store import Ticket
from .host_memory import allocate

# So that every CUDA context may copy from the memory, not only the one that locked it.
_PORTABLE = 1


class CopyStream:
    """A stream of its own for copies to one device.

    Parameters
    ----------
    device : torch.device
    meter : Meter, optional
        Is told how long each copy took, once the device knows.
    """

    def __init__(self, device: torch.device, meter: Meter | None = None) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._meter = meter
        self.process = os.getpid()
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._lock = Lock()

    def copy(
        self, record: torch.Tensor, out: torch.Tensor, after: torch.cuda.Event | None
    ) -> torch.cuda.Event:
        """Enqueue a copy that waits for ``after``; return the event of its end.

        Returns before the copy has happened if ``record`` is page-locked, and must then stay as it
        is until the event.
        """
        require_process(self.process)
        timed = self._meter is not None
        start, end = _event(timed), _event(timed)
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            if timed:
                start.record(self._stream)
            out.copy_(record, non_blocking=True)
            end.record(self._stream)
        if timed:
            self._timed.append((start, end))
            self.note_times()
        return end

    def note_times(self) -> None:
        """Tell the meter of the copies that have ended since."""
        if self._meter is None:
            return
        with self._lock:
            while self._timed and is_over(self._timed[0][1]):
                start, end = self._timed.popleft()
                self._meter.lasted(start.elapsed_time(end) / 1e3)

    def synchronize(self) -> None:
        """Return when all copies have ended."""
        if self.process == os.getpid():
            self._stream.synchronize()


def open_stream(device: torch.device, meter: Meter | None = None) -> CopyStream | None:
    """Return a stream for copies to ``device``, None if it is the host."""
    return CopyStream(device, meter) if device.type == "cuda" else None


class EventTicket(Ticket):
    """A copy that is enqueued."""

    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event = event
        self._device = device

    def done(self) -> bool:
        """Return whether the copy has ended."""
        return is_over(self._event)

    def wait(self) -> None:
        """Make the current stream wait for the copy."""
        torch.cuda.current_stream(self._device).wait_event(self._event)


def is_over(event: torch.cuda.Event) -> bool:
    """Return whether the device has passed ``event``."""
    return bool(event.query())  # type: ignore[no-untyped-call]


def _event(timed: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


class StagingRing:
    """Page-locked buffers that records pass through, the least recently used first.

    Parameters
    ----------
    n_buffers : int
        More than the threads that use them.
    n_elements : int
        Of the largest record.
    dtype : torch.dtype
    stream : CopyStream
    """

    def __init__(
        self, n_buffers: int, n_elements: int, dtype: torch.dtype, stream: CopyStream
    ) -> None:
        self._stream = stream
        self._buffers: SimpleQueue[tuple[torch.Tensor, torch.cuda.Event | None]] = SimpleQueue()
        held = [allocate(n_elements, dtype) for _ in range(n_buffers)]
        #: Waits for the copies and unlocks the buffers; called at the latest on collection.
        self.close = weakref.finalize(self, release, stream, lock_pages(held))
        for buffer in held:
            self._buffers.put((buffer, None))

    def synchronize(self) -> None:
        """Return when all copies that were enqueued have ended."""
        self._stream.synchronize()

    def pass_through(
        self,
        fill: Callable[[torch.Tensor], None],
        out: torch.Tensor,
        after: torch.cuda.Event | None,
    ) -> torch.cuda.Event:
        """Let ``fill`` write a record into a buffer, then copy it to ``out``."""
        buffer, copied = self._buffers.get()
        try:
            if copied is not None:
                copied.synchronize()  # or the next record would overwrite one still being copied
            record = buffer[: len(out)]
            fill(record)
            copied = self._stream.copy(record, out, after)
        finally:
            self._buffers.put((buffer, copied))
        return copied


def release(stream: CopyStream, unlock: Callable[[], None]) -> None:
    """Unlock memory when nothing is copied from it any more."""
    if stream.process != os.getpid():
        return  # in a forked child: what is locked is the parent's
    stream.synchronize()
    unlock()


def lock_pages(memory: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Page-lock memory from :func:`allocate`; return what undoes it.

    The returned function keeps the memory alive, and does nothing when called again.

    Raises
    ------
    StoreError
        If the system refuses; nothing is locked then.

    Notes
    -----
    torch's own page-locked memory (``pin_memory=True``) comes in powers of two, so that 2.1 GiB
    take 4. Registering ordinary memory with CUDA locks what is asked for, rounded up to whole pages
    (measured by others: vLLM issues 53042 and 56410, SGLang pull request 36562).
    """
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    locked: list[torch.Tensor] = []

    def unlock() -> None:
        while locked:
            tensor = locked.pop()
            # The process may be past the point where CUDA can be called.
            with suppress(RuntimeError):
                cudart.cudaHostUnregister(tensor.data_ptr())

    for tensor in memory:
        error = int(cudart.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, _PORTABLE))
        if error:
            unlock()
            _forget_error()
            raise StoreError(
                f"CUDA cannot page-lock {tensor.nbytes:,} bytes of host memory (cudaError "
                f'{error}); the system may limit locked memory; use store="ram"'
            )
        locked.append(tensor)
    return unlock


def _forget_error() -> None:
    """Take the last error from CUDA, which otherwise the next kernel would be blamed for."""
    # Without CUDA, where a test plays the device, torch asserts.
    with suppress(RuntimeError, AssertionError):
        torch.ones(1, device="cuda")
