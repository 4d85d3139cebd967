"""The expert cache: which experts are in fast memory, and how others get there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from operator import index
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from specfit_opt.checks import Whole

from ..errors import BusyError, InvalidInputError
from ..stores._fork import renew_after_fork
from ..stores._host_memory import available_bytes
from .counters import CacheCounters
from .eviction import DEFAULT_EVICTION, get_eviction_policy
from .layer_slots import Entry, LayerSlots
from .ready_batch import ReadyBatch
from .scratch import Scratch
from .wait_clock import WaitClock

if TYPE_CHECKING:
    from ..stores.protocol import ExpertStore, Ticket


class _Use:
    """One layer's experts in use. What it names is not evicted while it is the cache's current."""

    __slots__ = ("experts", "flights", "layer", "queue")

    def __init__(self, layer: int, experts: Sequence[int]) -> None:
        self.layer = layer
        self.experts = frozenset(experts)
        self.flights: list[_Flight] = []
        #: What still has to pass through the scratch slab, the next one last.
        self.queue: list[int] = []


class _Flight:
    """An expert in a slot of the layer's slab or of the scratch slab, or on its way into one."""

    __slots__ = ("entry", "expert", "slot", "ticket")

    def __init__(
        self, expert: int, slot: int, ticket: Ticket | None, entry: Entry | None
    ) -> None:
        self.expert = expert
        self.slot = slot
        self.ticket = ticket
        self.entry = entry


class ExpertCache:
    """Keeps experts in slots of fast memory, one slab per layer, and fetches the others.

    Parameters
    ----------
    store : ExpertStore
        Where the others are.
    slots : sequence of int, shape (L,)
        Slots per layer, from 1 to E.
    policy : str
        Which expert gives up its slot first: a name of
        :data:`~specfit_runtime.expert_cache.EVICTION_POLICIES`.
    scratch : int
        Slots of the slab through which experts pass that get no slot of their layer. With 2 or
        more, the next ones load while one is computed with. 0 is allowed where every layer has a
        slot for every expert.
    device : torch.device or str, optional
        Where the slabs lie; the store's.

    Attributes
    ----------
    lock : threading.RLock
        Guards the cache. Threads that share one hold it while they iterate over :meth:`use`.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, or the slabs do not fit into memory.

    Notes
    -----
    *A pass* over the layers begins with :meth:`begin_pass` and may be announced by
    :meth:`prefetch`; without either, all works the same and nothing is prefetched.

    *Evictions*: only experts that the current :meth:`use` does not name are ever evicted, so an
    expert that was found in a slot stays there until its batch was computed with. For the other
    slots, what is in them and what the pass brings in compete by the policy's ranking; who loses
    is evicted, or passes through the scratch slab and is gone. What :meth:`prefetch` asks for does
    not compete.

    *Interrupts*: an exception may come at any point (KeyboardInterrupt, one of a signal handler).
    Which slot holds which expert is decided by one dictionary per layer, in which an expert is
    entered after its fetch has begun and taken out before another may use its slot. If an exception
    tears such a change, the next call waits until the store writes to no slot any more and derives
    everything else from the dictionaries.

    *CUDA*: slots are handed to the store with the event after which the compute that read them is
    over. All computing with batches belongs on the stream that is current when they are asked for.
    """

    def __init__(
        self,
        store: ExpertStore,
        slots: Sequence[int],
        *,
        policy: str = DEFAULT_EVICTION,
        scratch: int,
        device: torch.device | str | None = None,
    ) -> None:
        self.n_layers, self.n_experts = store.index.n_layers, store.index.n_experts
        self.device = store.device if device is None else torch.device(device)
        if self.device.type != store.device.type:
            raise InvalidInputError(
                f"the store brings experts to {store.device}, the cache was to be on {self.device}"
            )
        self.slots = _checked_slots(slots, self.n_layers, self.n_experts)
        self._cuda = self.device.type == "cuda"
        self._kind = get_eviction_policy(policy)
        self._policy = self._kind.make(self.n_layers, self.n_experts)
        self.lock = RLock()
        self._store = store
        self._moved = [int(n) for n in store.moved_bytes]
        self._clock = WaitClock(self.device)
        base = np.zeros((self.n_layers, self.n_experts), dtype=np.bool_)
        self._resident = base.view()
        self._resident.flags.writeable = False
        scratch = _checked_scratch(scratch, self.slots, self.n_experts)
        widths = [layout.n_elements for layout in store.index.layouts]
        dtypes = [layout.dtype for layout in store.index.layouts]
        slabs = _allocate(
            [*zip(self.slots, widths, strict=True), (scratch, max(widths))],
            [*dtypes, dtypes[0]],
            self.device,
        )
        event = self._event()
        self._layers = [
            LayerSlots(slab, row, event) for slab, row in zip(slabs[:-1], base, strict=True)
        ]
        self._scratch = Scratch(slabs[-1], widths, event)
        self._use: _Use | None = None
        # Set while slots change hands: found set at the next call, a change was torn.
        self._torn = False
        # Per layer: experts that the pass is expected to use, and those fetched for that reason
        # and not used yet.
        self._wanted: list[set[int]] = [set() for _ in range(self.n_layers)]
        self._unused: list[set[int]] = [set() for _ in range(self.n_layers)]
        self.reset_counters()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Go on in a child: what was on its way, or in use by other threads, is not here."""
        self.lock = RLock()
        self._use = None
        self._scratch.reset()
        for layer, slots in enumerate(self._layers):
            slots.entries = {e: entry for e, entry in slots.entries.items() if not entry.ticket}
            slots.restore()
            self._unused[layer].intersection_update(slots.entries)
        self._torn = False

    # ---- what is there

    @property
    def policy(self) -> str:
        """Name of the eviction policy."""
        return self._kind.name

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only live mask of shape (L, E): experts in a slot, or on their way into one."""
        return self._resident

    @property
    def n_bytes(self) -> int:
        """Bytes of all slabs, the scratch slab included."""
        slabs = [self._scratch.slab, *(layer.slab for layer in self._layers)]
        return sum(slab.numel() * slab.element_size() for slab in slabs)

    def counters(self) -> CacheCounters:
        """Return what was done since the cache was made, or the counters were reset."""
        with self.lock:
            moved = self._moved
            hits, misses, ahead = sum(self._hits), sum(self._misses), sum(self._ahead)
            ahead_bytes = sum(n * b for n, b in zip(self._ahead, moved, strict=True))
            return CacheCounters(
                lookups=hits + misses,
                hits=hits,
                misses=misses,
                evictions=self._evictions,
                bytes=ahead_bytes + sum(n * b for n, b in zip(self._misses, moved, strict=True)),
                prefetched=ahead,
                prefetch_hits=self._ahead_hits,
                prefetch_bytes=ahead_bytes,
                wasted_prefetch_bytes=sum(n * b for n, b in zip(self._wasted, moved, strict=True)),
                bypassed=self._bypassed,
                waves=self._waves,
                wait_seconds=self._clock.seconds(),
            )

    def reset_counters(self) -> None:
        """Set all counters to zero; what is in the slots stays."""
        with self.lock:
            self._hits = [0] * self.n_layers
            self._misses = [0] * self.n_layers
            self._ahead = [0] * self.n_layers
            self._wasted = [0] * self.n_layers
            self._ahead_hits = self._evictions = self._bypassed = self._waves = 0
            self._clock.reset()

    def clear(self) -> None:
        """Empty all slots and forget what was used: as the cache was made, counters aside.

        Raises
        ------
        BusyError
            If a :meth:`use` is not over.
        """
        with self.lock:
            if self._use is not None:
                raise BusyError("experts of the cache are in use; clear it when the pass is over")
            # Fetches under way must not write into slots that were given to others.
            self._torn = True
            for slots in self._layers:
                slots.entries.clear()
            for layer in range(self.n_layers):
                self._unused[layer].clear()
                self._wanted[layer].clear()
            self._policy = self._kind.make(self.n_layers, self.n_experts)
            self._mend()

    # ---- passes

    def begin_pass(self) -> None:
        """Begin a pass over the layers, and end the one before."""
        self.end_pass()

    def end_pass(self, tokens: int = 1) -> None:
        """End the pass: what was prefetched for it and not used is wasted, and may be evicted.

        Parameters
        ----------
        tokens : int
            What the pass committed, for eviction policies that reckon in tokens.
        """
        with self.lock:
            self._mend()
            self._policy.committed(tokens)
            for layer, wanted in enumerate(self._wanted):
                if wanted:
                    self._end_pass_of(layer)

    def prefetch(self, layer: int, experts: Sequence[int]) -> int:
        """Begin to fetch experts that the pass is expected to use.

        Parameters
        ----------
        layer : int
        experts : sequence of int
            The likeliest first: what finds no slot is dropped. They take free slots and those of
            experts that are neither in use nor expected by this pass (in this or earlier calls).
            Never blocks.

        Returns
        -------
        int
            Bytes that the fetches will move.

        Raises
        ------
        InvalidInputError
            If the layer or an expert is not there.
        StoreError
            If the store is closed. Whether a fetch fails shows when the expert is used.
        """
        self._check(layer, experts)
        with self.lock:
            self._mend()
            slots, wanted = self._layers[layer], self._wanted[layer]
            likeliest_first = dict.fromkeys(map(index, experts))
            wanted.update(likeliest_first)
            missing = [e for e in likeliest_first if e not in slots.entries]
            if not missing:
                return 0
            kept = wanted
            if self._use is not None and self._use.layer == layer:
                kept = wanted | self._use.experts
            lacking = len(missing) - len(slots.free)
            victims = []
            if lacking > 0:
                candidates = [
                    expert
                    for expert, entry in slots.entries.items()
                    if expert not in kept and (entry.ticket is None or entry.ticket.done())
                ]
                victims = self._policy.victims(layer, candidates, lacking)
                del missing[len(slots.free) + len(victims) :]
            self._torn = True
            for expert in missing:
                if not slots.free:
                    self._evict(layer, victims.pop(0))
                self._admit(layer, expert)
                self._ahead[layer] += 1
                self._unused[layer].add(expert)
            self._torn = False
            return len(missing) * self._moved[layer]

    @property
    def weighs(self) -> bool:
        """Whether the eviction policy makes use of the weights that :meth:`use` takes."""
        return self._kind.weighs

    @property
    def admission(self) -> bool:
        """Whether the eviction policy keeps out what only unlikely tokens use."""
        return self._kind.admission

    def use(
        self,
        layer: int,
        experts: Sequence[int],
        demand: Sequence[int],
        weight: Sequence[float] | None = None,
    ) -> Generator[ReadyBatch, None, None]:
        """Bring experts into fast memory and hand them out as they get there.

        Parameters
        ----------
        layer : int
        experts : sequence of int
            Distinct ids: all that this pass uses in the layer.
        demand : sequence of int
            How many tokens use each of them. Among experts that are equal to the eviction policy,
            those asked for most get the slots.
        weight : sequence of float, optional
            Probability that a committed token uses each of them, for eviction policies that weigh
            (:attr:`weighs`); None: all are certain.

        Yields
        ------
        ReadyBatch
            Each expert is in exactly one. First those that are there, then the others as they
            arrive. A batch may be computed with until the next is asked for.

        Raises
        ------
        InvalidInputError
            If the layer or an expert is not there, or named twice.
        StoreError
            If a fetch fails. The expert is then not in the cache, and its next use fetches it anew.
        BusyError
            If another :meth:`use` began before this one was over; see :attr:`lock`.

        Notes
        -----
        Close the iterator (``contextlib.closing``) unless it was exhausted. What was still on its
        way then arrives in its slot and stays.
        """
        self._check(layer, experts)
        use = _Use(layer, experts)
        if len(use.experts) != len(experts) or len(demand) != len(experts):
            raise InvalidInputError(
                f"{len(experts)} experts of which {len(use.experts)} are distinct were given, and "
                f"the demand for {len(demand)}; name each once"
            )
        if weight is not None and len(weight) != len(experts):
            raise InvalidInputError(
                f"weights of {len(weight)} experts were given for {len(experts)}; give one each"
            )
        return self._batches(use, experts, demand, weight)

    # ---- inside

    def _batches(
        self,
        use: _Use,
        experts: Sequence[int],
        demand: Sequence[int],
        weight: Sequence[float] | None,
    ) -> Generator[ReadyBatch, None, None]:
        slots = self._layers[use.layer]
        try:
            with self.lock:
                there = self._start(use, experts, demand, weight)
            landed = self._landed(use)
            while there or landed or use.flights or use.queue:
                if not there and not landed:
                    landed = self._land(use)
                inside = there + [f for f in landed if f.entry is not None]
                there = []
                if inside:
                    yield from self._hand_out(use, _batch(slots.slab, inside))
                passing = [f for f in landed if f.entry is None]
                if passing:
                    view = self._scratch.views[use.layer]
                    yield from self._hand_out(use, _batch(view, passing), passing=True)
                landed = self._landed(use)
        finally:
            if self._use is use:
                self._use = None

    def _start(
        self,
        use: _Use,
        experts: Sequence[int],
        demand: Sequence[int],
        weight: Sequence[float] | None,
    ) -> list[_Flight]:
        """Begin all fetches that find a slot; return what is there."""
        self._mend()
        if self._use is not None and self._cuda:
            # It was given up without being closed; its slots may still be read.
            torch.cuda.synchronize(self.device)
        self._use = use
        layer = use.layer
        slots, policy = self._layers[layer], self._policy
        entries = slots.entries
        policy.touch(layer, experts, demand, weight)
        there: list[_Flight] = []
        missing: list[int] = []
        for expert in experts:
            entry = entries.get(expert)
            if entry is None:
                missing.append(expert)
                continue
            flight = _Flight(expert, entry.slot, entry.ticket, entry)
            (there if entry.ticket is None else use.flights).append(flight)
        self._hits[layer] += len(experts) - len(missing)
        unused = self._unused[layer]
        if unused:
            found = unused.intersection(experts)
            self._ahead_hits += len(found)
            unused -= found
        if missing:
            self._fetch_missing(use, missing)
        return there

    def _fetch_missing(self, use: _Use, missing: list[int]) -> None:
        layer, slots = use.layer, self._layers[use.layer]
        victims: list[int] = []
        lacking = len(missing) - len(slots.free)
        if lacking > 0:
            # What is in use stays. For the other slots, what is in them competes with what comes.
            idle = [e for e in slots.entries if e not in use.experts]
            losers = self._policy.victims(layer, idle + missing, lacking, missing)
            victims = [e for e in losers if e in slots.entries]
            passing = frozenset(losers).difference(victims)
            missing = [e for e in missing if e not in passing]
            # The last one passes first: it is the one that most nearly got a slot.
            use.queue = [e for e in losers if e in passing]
            self._bypassed += len(use.queue)
            self._waves += -(-len(use.queue) // self._scratch.n_slots)
        self._torn = True
        for expert in missing:
            if not slots.free:
                self._evict(layer, victims.pop(0))
            entry = self._admit(layer, expert)
            self._misses[layer] += 1
            assert entry.ticket is not None
            use.flights.append(_Flight(expert, entry.slot, entry.ticket, entry))
        self._torn = False
        if use.queue:
            self._reclaim_scratch()
            self._fill_scratch(use)

    def _admit(self, layer: int, expert: int) -> Entry:
        """Fetch an expert into a free slot."""
        slots = self._layers[layer]
        slot = slots.free.pop()
        ticket = self._store.fetch(layer, expert, slots.rows[slot], slots.read[slot])
        entry = Entry(slot, ticket)
        slots.hold(expert, entry)
        self._policy.admit(layer, expert)
        return entry

    def _evict(self, layer: int, expert: int) -> None:
        slots = self._layers[layer]
        ticket = slots.entries[expert].ticket
        if ticket is not None:
            _wait_out(ticket)
            slots.read[slots.entries[expert].slot] = self._event()
        slots.drop(expert)
        self._evictions += 1
        if expert in self._unused[layer]:
            self._unused[layer].discard(expert)
            self._wasted[layer] += 1

    def _landed(self, use: _Use) -> list[_Flight]:
        """Return the flights that are over, and strike them off."""
        landed = [f for f in use.flights if f.ticket is None or f.ticket.done()]
        if landed:
            for flight in landed:
                self._wait(use, flight)
            over = set(map(id, landed))
            use.flights = [f for f in use.flights if id(f) not in over]
        return landed

    def _land(self, use: _Use) -> list[_Flight]:
        """Wait for the flight that began first; return it and what else is over by then."""
        first = use.flights[0]
        with self._clock.waiting():
            self._wait(use, first)
        del use.flights[0]
        return [first, *self._landed(use)]

    def _wait(self, use: _Use, flight: _Flight) -> None:
        if flight.ticket is None:
            return
        try:
            flight.ticket.wait()
        except Exception:
            with self.lock:
                slots, entry = self._layers[use.layer], flight.entry
                if entry is not None and slots.entries.get(flight.expert) is entry:
                    self._torn = True
                    slots.drop(flight.expert)
                    self._torn = False
            raise
        if flight.entry is not None:
            flight.entry.ticket = None

    def _hand_out(
        self, use: _Use, batch: ReadyBatch, passing: bool = False
    ) -> Generator[ReadyBatch, None, None]:
        self._check_current(use)
        try:
            yield batch
        finally:
            if self._cuda:
                event = self._event()
                read = self._scratch.read if passing else self._layers[use.layer].read
                for slot in batch.slots:
                    read[slot] = event
        with self.lock:
            self._check_current(use)
            if passing:
                for slot in batch.slots:
                    del self._scratch.tickets[slot]
                    self._scratch.free.append(slot)
                self._fill_scratch(use)

    def _fill_scratch(self, use: _Use) -> None:
        scratch, layer = self._scratch, use.layer
        view = scratch.views[layer]
        self._torn = True
        while use.queue and scratch.free:
            expert, slot = use.queue.pop(), scratch.free.pop()
            ticket = self._store.fetch(layer, expert, view[slot], scratch.read[slot])
            self._misses[layer] += 1
            scratch.tickets[slot] = ticket
            use.flights.append(_Flight(expert, slot, ticket, None))
        self._torn = False

    def _reclaim_scratch(self) -> None:
        """Free what a use that was given up left behind in the scratch slab."""
        for ticket in self._scratch.tickets.values():
            _wait_out(ticket)
        self._scratch.reset()

    def _mend(self) -> None:
        """Restore what an exception tore."""
        if not self._torn:
            return
        # A fetch may have begun whose ticket was lost.
        self._store.drain()
        if self._cuda:
            torch.cuda.synchronize(self.device)
        for layer, slots in enumerate(self._layers):
            slots.restore()
            self._unused[layer].intersection_update(slots.entries)
        self._torn = False

    def _end_pass_of(self, layer: int) -> None:
        slots, unused = self._layers[layer], self._unused[layer]
        self._wasted[layer] += len(unused)
        for expert in unused:
            entry = slots.entries.get(expert)
            if entry is None or entry.ticket is None or not entry.ticket.done():
                continue
            try:
                entry.ticket.wait()
                entry.ticket = None
            except Exception:
                # Nobody asked for it yet: whoever does fetches it anew and is told what is wrong.
                self._torn = True
                slots.drop(expert)
                self._torn = False
        unused.clear()
        self._wanted[layer].clear()

    def _event(self) -> torch.cuda.Event | None:
        """Return an event behind all that was queued so far; None on a CPU."""
        if not self._cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _check_current(self, use: _Use) -> None:
        if self._use is not use:
            raise BusyError(
                "another use of the expert cache began before this one was over; threads that "
                "share a cache must hold its lock while they iterate"
            )

    def _check(self, layer: int, experts: Sequence[int]) -> None:
        if not 0 <= layer < self.n_layers:
            raise InvalidInputError(
                f"layer {layer} is not there: the model has MoE layers 0 to {self.n_layers - 1}"
            )
        if len(experts) and not (min(experts) >= 0 and max(experts) < self.n_experts):
            raise InvalidInputError(
                f"experts of layer {layer} must be from 0 to {self.n_experts - 1}, got "
                f"{min(experts)} to {max(experts)}"
            )


def _batch(slab: torch.Tensor, flights: Sequence[_Flight]) -> ReadyBatch:
    return ReadyBatch(slab, tuple(f.expert for f in flights), tuple(f.slot for f in flights))


def _wait_out(ticket: Ticket) -> None:
    """Wait until a fetch is over whose result nobody wants."""
    with suppress(Exception):
        ticket.wait()


def _checked_slots(slots: Sequence[int], n_layers: int, n_experts: int) -> tuple[int, ...]:
    counts = tuple(slots)
    if len(counts) != n_layers:
        raise InvalidInputError(
            f"slots are given for {len(counts)} layers, the model has {n_layers} MoE layers"
        )
    return tuple(Whole(1, n_experts)(n, f"slots[{layer}]") for layer, n in enumerate(counts))


def _checked_scratch(scratch: Any, slots: Sequence[int], n_experts: int) -> int:
    least = 0 if all(n == n_experts for n in slots) else 1
    count: int = Whole(least)(scratch, "scratch")
    return count


def _allocate(
    shapes: Sequence[tuple[int, int]], dtypes: Sequence[torch.dtype], device: torch.device
) -> list[torch.Tensor]:
    total = sum(n * width * d.itemsize for (n, width), d in zip(shapes, dtypes, strict=True))
    # The system would hand out memory that is not there, and end the process when it is filled.
    free = available_bytes() if device.type == "cpu" else None
    try:
        if free is not None and total > free:
            raise RuntimeError(f"{free} are available")
        # An inference tensor could not be written to outside of inference mode.
        with torch.inference_mode(False):
            return [
                torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
    except RuntimeError as error:
        raise InvalidInputError(
            f"an expert cache of {total} bytes, the scratch slab included, does not fit into the "
            f"memory of {device}; give a smaller expert_cache ({str(error).splitlines()[0]})"
        ) from error
