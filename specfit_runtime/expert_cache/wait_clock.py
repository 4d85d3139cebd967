"""Measures for how long compute stands still for want of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter

import torch

from ..forking import renew_after_fork

# Pairs of events kept before those that are over are summed up.
_MANY = 256


class WaitClock:
    """Sums waiting time.

    On a CPU the calling thread waits, and its clock is read. On CUDA the host hardly waits at all;
    what stands still is the stream, so events on both sides of the wait are timed.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = Lock()
        self._seconds = 0.0
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = Lock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time spent inside, whatever it ends in."""
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            start, end = _event(), _event()
            start.record(stream)
            try:
                yield
            finally:
                end.record(stream)
                with self._lock:
                    self._pairs.append((start, end))
                    if len(self._pairs) > _MANY:
                        self._sum_up(block=False)
        else:
            begin = perf_counter()
            try:
                yield
            finally:
                with self._lock:
                    self._seconds += perf_counter() - begin

    def seconds(self) -> float:
        """Return the sum; on CUDA this first waits for what was counted to be over."""
        with self._lock:
            self._sum_up(block=True)
            return self._seconds

    def reset(self, seconds: float = 0.0) -> None:
        """Start again at zero, or at ``seconds``."""
        with self._lock:
            self._seconds = seconds
            self._pairs.clear()

    def _sum_up(self, block: bool) -> None:
        later = []
        for start, end in self._pairs:
            if block:
                end.synchronize()
            elif not end.query():  # type: ignore[no-untyped-call]
                later.append((start, end))
                continue
            self._seconds += start.elapsed_time(end) / 1e3
        self._pairs = later


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
