"""Counts what a store moves, from several threads."""

from __future__ import annotations

from threading import Lock

from ..forking import renew_after_fork
from .expert_store import StoreCounters


class Meter:
    """Thread-safe sums behind :class:`StoreCounters`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._fetches = self._failures = self._bytes = 0
        self._seconds = 0.0
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = Lock()

    def moved(self, n_bytes: int) -> None:
        """Add bytes at the moment they have moved."""
        with self._lock:
            self._bytes += n_bytes

    def ended(self, seconds: float, failed: bool = False) -> None:
        """Count a fetch that took ``seconds``."""
        with self._lock:
            self._fetches += not failed
            self._failures += failed
            self._seconds += seconds

    def lasted(self, seconds: float) -> None:
        """Add time that is known only after its fetch was counted."""
        with self._lock:
            self._seconds += seconds

    def read(self) -> StoreCounters:
        """Return the sums as they stand."""
        with self._lock:
            return StoreCounters(self._fetches, self._failures, self._bytes, self._seconds)
