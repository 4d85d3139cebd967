"""What ends a solve early: a signal in the main thread, a request in any other.

Python's handlers run in the main thread alone, so an interrupt reaches a solve there by itself, as
soon as the kernel looks up. :func:`stopped_by` lets another thread or process be stopped too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

_requests = threading.local()


class Stop(Protocol):
    """What says that a solve shall end, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether it shall."""


@dataclass(frozen=True)
class FolderGone:
    """Is set when a folder is no longer there: what another process of this machine can see.

    Attributes
    ----------
    folder : str
    """

    folder: str

    def is_set(self) -> bool:
        """Return whether the folder is gone."""
        return not os.path.exists(self.folder)


@contextmanager
def stopped_by(event: Stop | None) -> Iterator[None]:
    """Let solves of this thread end with CancelledError once ``event``, if any, is set."""
    _requests.event = event
    try:
        yield
    finally:
        _requests.event = None


def is_watched() -> bool:
    """Whether anything could ask a solve of this thread to end early."""
    if getattr(_requests, "event", None) is not None:
        return True
    return threading.current_thread() is threading.main_thread()


def look_up() -> None:
    """Raise CancelledError if this thread's solves shall end."""
    event: Stop | None = getattr(_requests, "event", None)
    if event is not None and event.is_set():
        raise CancelledError
