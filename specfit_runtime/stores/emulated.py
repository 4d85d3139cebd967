"""A store behind a link whose speed is emulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specfit_opt.checks import Real

from ._early import EarlyQueue
from .expert_store import ExpertStore, StoreCounters, Ticket

#: What a link may bring.
BANDWIDTH = Real(1.0, unit="bytes per second")

# A sleep ends up to about 0.1 ms late; the rest of a wait is spent asking the clock.
_SPIN = 2e-4


class EmulatedLink(ExpertStore):
    """Makes every fetch of another store take at least bytes / bandwidth, one after the other.

    For machines without the link in question. Results that it had a part in are emulations: its
    name and its description say so.

    Parameters
    ----------
    store : ExpertStore
        What really brings the weights; closed together with the link.
    bandwidth : float
        Bytes per second.
    now, sleep : callable, optional
        The clock, in seconds; tests bring their own.

    Raises
    ------
    InvalidInputError
        If the bandwidth is not a finite number of at least 1.

    Notes
    -----
    A transfer of ``b`` bytes (`moved_bytes`) that is fetched at time ``t`` ends at ``max(t, end of
    the one before) + b / bandwidth``, or when the store itself is done if that is later. An early
    one begins once the link is free and no other waits; the store is asked for it when the link is
    spoken to the next time. In the counters, `seconds` is the larger of the store's own and the
    emulated time.
    """

    def __init__(
        self,
        store: ExpertStore,
        bandwidth: float,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.bandwidth = BANDWIDTH(bandwidth, "link_bandwidth")
        self._store = store
        self.name = f"emulated-{store.name}"
        self.index = store.index
        self.device = store.device
        self.moved_bytes = store.moved_bytes
        self._now, self._sleep = now, sleep
        # No cycle through this: it would keep a dropped store until the collector runs.
        line = self._line = _Line()
        self._early = EarlyQueue(lambda: line.free <= now())

    @property
    def description(self) -> str:
        """One line for reports; says that the link is emulated, and how fast it is."""
        return f"{self._store.description}, over an emulated link of {self.bandwidth / 1e9:g} GB/s"

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        """Start a fetch; see :meth:`ExpertStore.fetch`."""
        asked, line = self._now(), self._line

        def begin() -> Ticket:
            ticket = self._store.fetch(layer, expert, out, after)
            duration = float(self.moved_bytes[layer]) / self.bandwidth
            # Also of an early one: it began when the link became free, not when somebody looked.
            line.free = end = max(asked, line.free) + duration
            line.busy += duration
            return _LinkTicket(ticket, end, self._now, self._sleep)

        if early:
            return self._early.add(begin)
        with self._early.lock:
            self._early.go_on()
            return begin()

    def counters(self) -> StoreCounters:
        """Return what was moved so far."""
        counters = self._store.counters()
        return replace(counters, seconds=max(counters.seconds, self._line.busy))

    def drain(self) -> None:
        """Wait for every fetch that began; the emulated times do not matter to the slots."""
        self._early.begin_all()
        self._store.drain()

    def close(self) -> None:
        """Close the store behind the link; may be called again."""
        self._early.close()
        self._store.close()


class _Line:
    """When the last transfer ends, and how long all took."""

    free = float("-inf")
    busy = 0.0


class _LinkTicket(Ticket):
    def __init__(
        self, ticket: Ticket, end: float, now: Callable[[], float], sleep: Callable[[float], Any]
    ) -> None:
        self._ticket, self._end = ticket, end
        self._now, self._sleep = now, sleep

    def done(self) -> bool:
        """Return whether :meth:`wait` would return or raise at once. Never blocks."""
        return self._now() >= self._end and self._ticket.done()

    def wait(self) -> None:
        """Return when the weights may be used; see :meth:`Ticket.wait`."""
        try:
            self._ticket.wait()
        finally:  # a fetch that fails has occupied the link all the same
            while (left := self._end - self._now()) > 0.0:
                # Sleeping for no time lets the threads of the store run.
                self._sleep(max(0.0, left - _SPIN))
