"""One use of a layer's experts: brings in what is missing and hands all of them out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ..errors import BusyError
from .expert_slots import ExpertSlots
from .layer_slots import Entry
from .ready_batch import ReadyBatch

if TYPE_CHECKING:
    from ..stores.expert_store import Ticket


class _Flight:
    """An expert in a slot of the layer's slab or of the scratch slab, or on its way into one."""

    __slots__ = ("early", "entry", "expert", "slot", "ticket")

    def __init__(
        self, expert: int, slot: int, ticket: Ticket | None, entry: Entry | None
    ) -> None:
        self.expert = expert
        self.slot = slot
        self.ticket = ticket
        #: None in the scratch slab.
        self.entry = entry
        #: Whether it was fetched early, and is used now for the first time.
        self.early = False


class LayerUse:
    """The experts of one layer that a pass uses, until all were handed out.

    What it names is not evicted while it is the slots' current use.

    Parameters
    ----------
    slots : ExpertSlots
    layer : int
    experts : sequence of int
        Distinct.
    demand : sequence of int
        How many tokens use each of them.
    meanwhile : callable, optional
        See `ExpertCache.use`.
    """

    def __init__(
        self,
        slots: ExpertSlots,
        layer: int,
        experts: Sequence[int],
        demand: Sequence[int],
        meanwhile: Callable[[int], None] | None = None,
    ) -> None:
        self.layer = layer
        self.experts = frozenset(experts)
        self._slots = slots
        self._order, self._demand, self._meanwhile = experts, demand, meanwhile
        self._flights: list[_Flight] = []
        # What still has to pass through the scratch slab, the next one last.
        self._queue: list[int] = []

    def batches(self) -> Generator[ReadyBatch, None, None]:
        """Yield what is there, then the others as they arrive; see `ExpertCache.use`."""
        slots = self._slots
        own, scratch = slots.layers[self.layer], slots.scratch
        try:
            with slots.lock:
                there = self._start()
                if self._meanwhile is not None:
                    self._meanwhile(len(self._flights) + len(self._queue))
            landed = self._landed()
            while there or landed or self._flights or self._queue:
                if not there and not landed:
                    landed = self._land()
                inside = there + [f for f in landed if f.entry is not None]
                there = []
                if inside:
                    yield from self._hand_out(_batch(own.slab, inside))
                passing = [f for f in landed if f.entry is None]
                if passing:
                    yield from self._hand_out(
                        _batch(scratch.views[self.layer], passing), passing=True
                    )
                landed = self._landed()
        finally:
            if slots.in_use is self:
                slots.in_use = None

    def _start(self) -> list[_Flight]:
        """Begin all fetches that find a slot; return what is there."""
        slots, layer, experts = self._slots, self.layer, self._order
        slots.mend()
        if slots.in_use is not None and slots.cuda:
            # It was given up without being closed; its slots may still be read.
            torch.cuda.synchronize(slots.device)
        slots.in_use = self
        entries = slots.layers[layer].entries
        slots.note_use(layer, experts, self._demand)
        there: list[_Flight] = []
        missing: list[int] = []
        for expert in experts:
            entry = entries.get(expert)
            if entry is None:
                missing.append(expert)
                continue
            flight = _Flight(expert, entry.slot, entry.ticket, entry)
            (there if entry.ticket is None else self._flights).append(flight)
        slots.tally.hits[layer] += len(experts) - len(missing)
        if slots.early[layer]:
            self._settle_early(there)
        if missing:
            self._fetch_missing(missing)
        return there

    def _settle_early(self, there: list[_Flight]) -> None:
        """Count which early experts came to be used, and part with the others."""
        slots, layer = self._slots, self.layer
        early = slots.early[layer]
        found = early & self.experts
        early -= found
        slots.tally.prefetch_hits += len(found)
        for flight in self._flights:
            if flight.expert in found and flight.ticket is not None:
                flight.early = True
                flight.ticket.promote()
        slots.settle(layer, self.experts)
        hidden = sum(flight.expert in found for flight in there)
        slots.tally.hidden_seconds += hidden * slots.pace.seconds(layer)

    def _fetch_missing(self, missing: list[int]) -> None:
        slots, layer = self._slots, self.layer
        own, tally = slots.layers[layer], slots.tally
        slots.note_load(layer, missing)
        victims: list[int] = []
        lacking = len(missing) - len(own.free)
        if lacking > 0:
            # What is in use stays. For the other slots, what is in them competes with what comes.
            # What still comes in vain is left to come: waiting for it would serve nobody.
            idle = [
                expert
                for expert, entry in own.entries.items()
                if expert not in self.experts and (entry.ticket is None or entry.ticket.done())
            ]
            losers = slots.victims(layer, idle + missing, lacking)
            victims = [e for e in losers if e in own.entries]
            passing = frozenset(losers).difference(victims)
            missing = [e for e in missing if e not in passing]
            # The last one passes first: it is the one that most nearly got a slot.
            self._queue = [e for e in losers if e in passing]
            tally.bypassed += len(self._queue)
            tally.scratch_rounds += -(-len(self._queue) // slots.scratch.n_slots)
        with slots.changing:
            for expert in missing:
                if not own.free:
                    slots.evict(layer, victims.pop(0))
                entry = slots.bring(layer, expert)
                tally.misses[layer] += 1
                self._flights.append(_Flight(expert, entry.slot, entry.ticket, entry))
        if self._queue:
            slots.reclaim_scratch()
            self._fill_scratch()

    def _fill_scratch(self) -> None:
        slots, scratch, layer = self._slots, self._slots.scratch, self.layer
        view = scratch.views[layer]
        with slots.changing:
            while self._queue and scratch.free:
                expert, slot = self._queue.pop(), scratch.free.pop()
                ticket = slots.store.fetch(layer, expert, view[slot], scratch.read[slot])
                slots.tally.misses[layer] += 1
                scratch.tickets[slot] = ticket
                self._flights.append(_Flight(expert, slot, ticket, None))

    def _landed(self) -> list[_Flight]:
        """Return the flights that are over, and strike them off."""
        landed = [f for f in self._flights if f.ticket is None or f.ticket.done()]
        if landed:
            for flight in landed:
                self._wait(flight)
                if flight.early:
                    self._slots.tally.hidden_seconds += self._slots.pace.seconds(self.layer)
            over = set(map(id, landed))
            self._flights = [f for f in self._flights if id(f) not in over]
        return landed

    def _land(self) -> list[_Flight]:
        """Wait for the flight that began first; return it and what else is over by then."""
        slots, first = self._slots, self._flights[0]
        begin = perf_counter()
        with slots.clock.waiting():
            self._wait(first)
        if first.early and not slots.cuda:
            left = slots.pace.seconds(self.layer) - (perf_counter() - begin)
            slots.tally.hidden_seconds += max(left, 0.0)
        del self._flights[0]
        return [first, *self._landed()]

    def _wait(self, flight: _Flight) -> None:
        if flight.ticket is None:
            return
        slots, entry = self._slots, flight.entry
        try:
            flight.ticket.wait()
        except Exception:
            with slots.lock:
                entries = slots.layers[self.layer].entries
                if entry is not None and entries.get(flight.expert) is entry:
                    slots.drop(self.layer, flight.expert)
            raise
        if entry is not None:
            entry.ticket = None

    def _hand_out(
        self, batch: ReadyBatch, passing: bool = False
    ) -> Generator[ReadyBatch, None, None]:
        slots, scratch = self._slots, self._slots.scratch
        self._check_current()
        try:
            yield batch
        finally:
            if slots.cuda:
                event = slots.event()
                read = scratch.read if passing else slots.layers[self.layer].read
                for slot in batch.slots:
                    read[slot] = event
        with slots.lock:
            self._check_current()
            if passing:
                for slot in batch.slots:
                    del scratch.tickets[slot]
                    scratch.free.append(slot)
                self._fill_scratch()

    def _check_current(self) -> None:
        if self._slots.in_use is not self:
            raise BusyError(
                "another use of the expert cache began before this one was over; threads that "
                "share a cache must hold its lock while they iterate"
            )


def _batch(slab: torch.Tensor, flights: Sequence[_Flight]) -> ReadyBatch:
    return ReadyBatch(slab, tuple(f.expert for f in flights), tuple(f.slot for f in flights))
