"""A CUDA device that is played, for tests of the order in which things are asked of one.

It does nothing until it is told to, so that whatever is not waited for shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, local

import pytest
import torch

from specfit_runtime.stores import _cuda, _local, pinned


class Device:
    """Work that was enqueued, by stream; events happen when the work before them was done."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.locked: dict[int, int] = {}
        self.refuse_from = 1 << 62
        self.streams: list[Stream] = []
        self.main = Stream(self)
        #: Held while work is done, which any thread may do that waits for it.
        self.lock = RLock()
        self._current = local()  # every thread has its own

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.main)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._current.stream = stream

    def run(self) -> None:
        """Do all that can be done."""
        done = True
        while done:
            steps = [stream.step() for stream in self.streams]  # every stream gets its turn
            done = any(steps)

    # What torch.cuda.cudart() offers.
    def cudaHostRegister(self, address: int, n_bytes: int, flags: int) -> int:
        if len(self.locked) >= self.refuse_from:
            return 2
        assert address not in self.locked
        self.locked[address] = n_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        assert all(not stream.work for stream in self.streams), "memory is still being copied"
        del self.locked[address]
        return 0


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.work: list[Callable[[], bool]] = []
        device.streams.append(self)

    def step(self) -> bool:
        with self.device.lock:
            if self.work and self.work[0]():
                del self.work[0]
                return True
        return False

    def wait_event(self, event: Event) -> None:
        self.work.append(event.query)

    def synchronize(self) -> None:
        with self.device.lock:
            self.device.run()
            assert not self.work


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.happened: float | None = None
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream

        def happen() -> bool:
            self.happened = stream.device.clock
            return True

        stream.work.append(happen)

    def query(self) -> bool:
        return self.happened is not None

    def synchronize(self) -> None:
        assert self.stream is not None
        with self.stream.device.lock:
            while not self.query():
                # No stream gets further than it must.
                others = (stream.step() for stream in self.stream.device.streams)
                assert self.stream.step() or any(others), "waits for ever"

    def elapsed_time(self, end: Event) -> float:
        assert self.timed
        assert end.timed
        assert self.happened is not None
        assert end.happened is not None
        return (end.happened - self.happened) * 1e3


def play(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Put a played device in the place of CUDA, for the stores and for whoever uses events."""
    played = Device()
    real_copy = torch.Tensor.copy_

    @contextmanager
    def as_current(stream: Stream) -> Iterator[None]:
        before, played.current = played.current, stream
        try:
            yield
        finally:
            played.current = before

    def copy(out: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if played.current is played.main:
            return real_copy(out, source)
        assert non_blocking

        def do() -> bool:
            real_copy(out, source)
            played.clock += 2.0
            return True

        played.current.work.append(do)
        return out

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(played))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", as_current)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: played.main)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: played)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    monkeypatch.setattr(
        _local, "open_stream", lambda device, meter: _cuda.CopyStream(device, meter)
    )
    monkeypatch.setattr(_local, "check_fetch", lambda *arguments: None)

    class PlayedDevice:
        type = "cuda"

    monkeypatch.setattr(pinned, "checked_device", lambda device: PlayedDevice())
    return played
