"""The emulated link, by a clock that the tests turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.errors import InvalidInputError, StoreError
from specfit_runtime.stores import (
    DiskStore,
    EmulatedLink,
    ExpertStore,
    StoreCounters,
    Ticket,
    open_store,
)


class Clock:
    """Stands still unless someone sleeps or turns it."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.time += max(seconds, 1e-6)  # looking at a real clock takes time, too


class FakeTicket(Ticket):
    def __init__(self, store: FakeStore) -> None:
        self._store = store

    def done(self) -> bool:
        return self._store.arrived

    def wait(self) -> None:
        self._store.clock.time += self._store.takes
        if self._store.fails:
            raise StoreError("the tape is torn")


class FakeStore(ExpertStore):
    """Moves nothing; layer 0 has 1,000 bytes, layer 1 has 3,000."""

    name = "tape"
    device = torch.device("cpu")
    moved_bytes = np.array([1000, 3000])

    def __init__(self, clock: Clock, index: object = None) -> None:
        self.index = index  # type: ignore[assignment]
        self.clock = clock
        self.arrived = True
        self.fails = False
        self.takes = 0.0
        self.seconds = 0.0
        self.closed = self.drained = 0
        self.events: list[object] = []

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        self.events.append(after)
        return FakeTicket(self)

    def counters(self) -> StoreCounters:
        return StoreCounters(len(self.events), 0, 17, self.seconds)

    def drain(self) -> None:
        self.drained += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> FakeStore:
    return FakeStore(clock)


@pytest.fixture
def link(store: FakeStore, clock: Clock) -> EmulatedLink:
    """A link of 1,000 bytes per second."""
    return EmulatedLink(store, 1000, now=clock.now, sleep=clock.sleep)


@pytest.fixture
def fetch(link: EmulatedLink) -> Callable[[int], Ticket]:
    return lambda layer: link.fetch(layer, 0, torch.empty(0))


def test_a_transfer_takes_its_bytes_over_the_bandwidth(
    fetch: Callable[[int], Ticket], clock: Clock
) -> None:
    fetch(1).wait()
    assert clock.time == pytest.approx(103.0, abs=2e-6)
    assert clock.time >= 103.0


def test_transfers_queue_on_one_link(fetch: Callable[[int], Ticket], clock: Clock) -> None:
    first, second = fetch(0), fetch(1)
    clock.time = 102.0
    third = fetch(0)
    assert first.done()
    assert not second.done()
    assert not third.done()
    second.wait()
    assert clock.time == pytest.approx(104.0, abs=2e-6)
    assert second.done()
    assert not third.done()
    third.wait()
    assert clock.time == pytest.approx(105.0, abs=2e-6)


def test_an_idle_link_starts_at_once(fetch: Callable[[int], Ticket], clock: Clock) -> None:
    fetch(0)
    clock.time = 150.0
    fetch(0).wait()
    assert clock.time == pytest.approx(151.0, abs=2e-6)


def test_time_that_passed_meanwhile_is_not_waited_for_again(
    fetch: Callable[[int], Ticket], clock: Clock
) -> None:
    ticket = fetch(0)
    clock.time = 100.75  # the forward pass computed
    ticket.wait()
    assert sum(clock.sleeps) == pytest.approx(0.25, abs=1e-3)
    clock.sleeps.clear()
    ticket.wait()
    assert clock.sleeps == []


def test_a_wait_sleeps_first_and_asks_the_clock_at_the_end(
    fetch: Callable[[int], Ticket], clock: Clock
) -> None:
    fetch(0).wait()
    assert clock.sleeps[0] == pytest.approx(1.0, abs=1e-3)
    assert clock.sleeps[0] < 1.0
    assert len(clock.sleeps) > 100
    assert max(clock.sleeps[1:]) < 1e-9


def test_a_ticket_is_done_only_when_the_store_is_too(
    fetch: Callable[[int], Ticket], store: FakeStore, clock: Clock
) -> None:
    store.arrived = False
    ticket = fetch(0)
    clock.time = 200.0
    assert not ticket.done()
    store.arrived = True
    assert ticket.done()


def test_a_store_slower_than_the_link_is_waited_for(
    fetch: Callable[[int], Ticket], store: FakeStore, clock: Clock
) -> None:
    store.takes = 7.0
    fetch(0).wait()
    assert clock.time == 107.0


def test_seconds_include_the_emulated_time(
    link: EmulatedLink, fetch: Callable[[int], Ticket], store: FakeStore
) -> None:
    assert link.counters() == StoreCounters(0, 0, 17, 0.0)
    fetch(0)
    fetch(1)
    assert link.counters() == StoreCounters(2, 0, 17, 4.0)
    store.seconds = 4.5
    assert link.counters().seconds == 4.5


def test_the_link_says_that_it_is_emulated(link: EmulatedLink) -> None:
    assert link.name == "emulated-tape"
    assert link.description == "tape, over an emulated link of 1e-06 GB/s"
    assert EmulatedLink(FakeStore(Clock()), 25e9).description.endswith("emulated link of 25 GB/s")


def test_a_failed_fetch_fails_over_the_link(
    fetch: Callable[[int], Ticket], store: FakeStore, clock: Clock
) -> None:
    store.fails = True
    ticket = fetch(0)
    with pytest.raises(StoreError, match="torn"):
        ticket.wait()
    assert ticket.done()
    assert clock.time >= 101.0


def test_the_store_behind_it_is_told_everything(
    link: EmulatedLink, store: FakeStore
) -> None:
    event = object()
    link.fetch(0, 0, torch.empty(0), event)  # type: ignore[arg-type]
    assert store.events == [event]
    link.drain()
    link.close()
    assert (store.drained, store.closed) == (1, 1)


@pytest.fixture
def early(link: EmulatedLink) -> Callable[[int], Ticket]:
    return lambda layer: link.fetch(layer, 0, torch.empty(0), early=True)


def test_an_early_fetch_begins_when_the_link_is_free(
    fetch: Callable[[int], Ticket], early: Callable[[int], Ticket], clock: Clock, store: FakeStore
) -> None:
    fetch(0)  # until 101
    ahead = early(1)
    assert len(store.events) == 1
    clock.time = 103.5
    assert not ahead.done()  # it began at 101, though nobody looked
    assert len(store.events) == 2
    clock.time = 104.0
    assert ahead.done()


def test_what_is_needed_goes_before_early_fetches_that_have_not_begun(
    fetch: Callable[[int], Ticket], early: Callable[[int], Ticket], clock: Clock
) -> None:
    under_way, waiting = early(0), early(0)  # the first until 101
    needed = fetch(1)
    needed.wait()
    assert clock.time == pytest.approx(104.0, abs=2e-6)
    assert under_way.done()
    assert not waiting.done()
    waiting.wait()
    assert clock.time == pytest.approx(105.0, abs=2e-6)


def test_an_early_fetch_that_is_promoted_goes_before_the_others(
    early: Callable[[int], Ticket], clock: Clock
) -> None:
    _, second, third = early(0), early(1), early(0)
    third.promote()
    third.wait()
    assert clock.time == pytest.approx(102.0, abs=2e-6)
    assert not second.done()


def test_an_early_fetch_can_be_given_up_until_it_begins(
    early: Callable[[int], Ticket], clock: Clock, store: FakeStore, link: EmulatedLink
) -> None:
    begun, waiting = early(0), early(1)
    assert not begun.cancel()
    assert waiting.cancel()
    assert not waiting.cancel()
    assert waiting.done()
    with pytest.raises(StoreError, match="given up"):
        waiting.wait()
    clock.time = 200.0
    assert begun.done()
    assert len(store.events) == 1
    assert link.counters().seconds == 1.0


def test_draining_begins_what_waits(
    early: Callable[[int], Ticket], link: EmulatedLink, store: FakeStore
) -> None:
    early(0), early(0)
    link.drain()
    assert len(store.events) == 2


def test_closing_fails_what_has_not_begun(
    early: Callable[[int], Ticket], link: EmulatedLink
) -> None:
    early(0)
    waiting = early(0)
    link.close()
    with pytest.raises(StoreError, match="closed before the fetch began"):
        waiting.wait()


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf"), "25", None, True])
def test_a_bandwidth_that_is_none_is_refused(store: FakeStore, bandwidth: object) -> None:
    with pytest.raises(InvalidInputError, match="link_bandwidth must be a finite number of bytes"):
        EmulatedLink(store, bandwidth)  # type: ignore[arg-type]


def test_the_real_clock_is_never_early(tmp_path: Path) -> None:
    experts: TinyExperts = write_experts(tmp_path, n_layers=1)
    bandwidth = float(experts.index.stored_bytes[0]) / 0.005
    with open_store("disk", experts.index, link_bandwidth=bandwidth) as link:
        assert isinstance(link, EmulatedLink)
        slots = experts.slots(6)
        start = time.perf_counter()
        for i, ticket in enumerate([link.fetch(0, e, slots[e]) for e in range(6)]):
            ticket.wait()
            assert time.perf_counter() - start >= 0.005 * (i + 1)
            assert experts.holds(slots[i], 0, i)
        assert link.counters().seconds >= 0.03
        assert link.counters().bytes == 6 * experts.index.stored_bytes[0]
        assert isinstance(link._store, DiskStore)
