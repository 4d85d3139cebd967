"""Which experts are in the slots of an expert cache, and how they come and go."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specfit_opt.caches import CacheRule, EvictionRule

from ..forking import renew_after_fork
from . import slabs
from .change import Change
from .layer_slots import Entry, LayerSlots
from .scratch import Scratch
from .tally import Tally
from .transfer_pace import TransferPace
from .wait_clock import WaitClock

if TYPE_CHECKING:
    from ..stores.expert_store import ExpertStore, Ticket
    from .layer_use import LayerUse


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What :meth:`ExpertSlots.restore` goes back to.

    Attributes
    ----------
    held : list of list of int
        Experts in the slots of each layer.
    rule : EvictionRule
    demand : ndarray of float64, shape (L, E)
    tally : Tally
    wait_seconds : float
    """

    held: list[list[int]]
    rule: EvictionRule
    demand: NDArray[np.float64]
    tally: Tally
    wait_seconds: float


class ExpertSlots:
    """What the parts of an :class:`~specfit_runtime.expert_cache.ExpertCache` share.

    Callers hold :attr:`lock`, and call :meth:`mend` before they rely on what they find.

    Parameters
    ----------
    store : ExpertStore
    slots : sequence of int, shape (L,)
    scratch : int
        Slots of the scratch slab.
    rule : CacheRule
    device : torch.device

    Attributes
    ----------
    store : ExpertStore
    lock : threading.RLock
    layers : list of LayerSlots
    scratch : Scratch
    resident : ndarray of bool, shape (L, E)
        Live: experts in a slot, or on their way into one.
    rule : EvictionRule
    early : list of set of int
        Per layer, experts that were fetched early and that no use has found yet.
    in_use : LayerUse or None
        The use that is going on, whose experts are not evicted.
    tally : Tally
    clock : WaitClock
    pace : TransferPace
    changing : Change
        Entered around every change of what is in the slots.
    """

    def __init__(
        self,
        store: ExpertStore,
        slots: Sequence[int],
        scratch: int,
        rule: CacheRule,
        device: torch.device,
    ) -> None:
        self.store = store
        self.device = device
        self.cuda = device.type == "cuda"
        self.lock = RLock()
        self.changing = Change()
        self.clock = WaitClock(device)
        self.pace = TransferPace(store)
        shape = len(slots), store.index.n_experts
        self._kind = rule
        self.rule = rule.make(*shape)
        self._demand = np.zeros(shape)
        self.tally = Tally.of(len(slots))
        self.in_use: LayerUse | None = None
        self.early: list[set[int]] = [set() for _ in slots]
        self.resident = np.zeros(shape, dtype=np.bool_)
        widths = [layout.n_elements for layout in store.index.layouts]
        dtypes = [layout.dtype for layout in store.index.layouts]
        *own, passing = slabs.allocate(
            [*zip(slots, widths, strict=True), (scratch, max(widths))], [*dtypes, dtypes[0]], device
        )
        event = self.event()
        self.layers = [
            LayerSlots(slab, row, event) for slab, row in zip(own, self.resident, strict=True)
        ]
        self.scratch = Scratch(passing, widths, event)
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Go on in a child: what was on its way, or in use by other threads, is not here."""
        self.lock = RLock()
        self.in_use = None
        self.scratch.reset()
        for slots in self.layers:
            slots.entries = {e: entry for e, entry in slots.entries.items() if not entry.ticket}
        self._derive()

    # ---- who goes first

    def note_use(self, layer: int, experts: Sequence[int], demand: Sequence[int]) -> None:
        """Tell the rule that a pass uses these experts, ``demand`` tokens each."""
        self._demand[layer, experts] = demand
        self.rule.use(self._mask(experts), layer)

    def note_load(self, layer: int, experts: Sequence[int]) -> None:
        """Tell the rule that these experts are loaded."""
        self.rule.load(self._mask(experts), layer)

    def victims(self, layer: int, candidates: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the candidates, the first to go first; all, if there are fewer.

        Among those that the rule ranks alike, the expert that fewer tokens asked for at its last
        use goes first, then the smaller id. A pass over a prompt ranks most of its experts alike;
        without the demand, decoding after it misses up to 5 % more (shipped model, half of the
        experts cached).
        """
        ids = np.array(candidates, dtype=np.int64)
        rank = self.rule.rank(layer)[ids]
        order = np.lexsort((ids, self._demand[layer, ids], rank))[:count]
        first: list[int] = ids[order].tolist()
        return first

    def _mask(self, experts: Sequence[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self.resident.shape[1], dtype=np.bool_)
        mask[list(experts)] = True
        return mask

    # ---- coming and going

    def bring(self, layer: int, expert: int, early: bool = False) -> Entry:
        """Begin to load an expert into a free slot; belongs into a change."""
        slots = self.layers[layer]
        slot = slots.free.pop()
        ticket = self.store.fetch(layer, expert, slots.rows[slot], slots.read[slot], early=early)
        entry = Entry(slot, ticket)
        slots.hold(expert, entry)
        return entry

    def evict(self, layer: int, expert: int) -> None:
        """Free an expert's slot for another; belongs into a change."""
        slots = self.layers[layer]
        entry = slots.entries[expert]
        if entry.ticket is not None:
            _wait_out(entry.ticket)
            slots.read[entry.slot] = self.event()
        slots.drop(expert)
        self.tally.evictions += 1
        self._note_vain(layer, expert)

    def drop(self, layer: int, expert: int) -> None:
        """Free the slot of an expert that nothing is on its way to any more."""
        with self.changing:
            self.layers[layer].drop(expert)
            self._note_vain(layer, expert)

    def settle(self, layer: int, used: Container[int]) -> None:
        """Part with the early experts of a layer that this use of it does not name.

        Those whose fetch has not begun are given up, the others were fetched in vain.
        """
        slots = self.layers[layer]
        for expert in [e for e in self.early[layer] if e not in used]:
            entry = slots.entries[expert]
            if entry.ticket is not None and entry.ticket.cancel():
                with self.changing:
                    slots.drop(expert)
                    self.early[layer].discard(expert)
                    self.tally.prefetched[layer] -= 1
                continue
            self._note_vain(layer, expert)
            if entry.ticket is not None and entry.ticket.done() and not entry.arrived():
                # Nobody asked for it yet: whoever does fetches it anew and is told what is wrong.
                self.drop(layer, expert)

    def _note_vain(self, layer: int, expert: int) -> None:
        if expert in self.early[layer]:
            self.early[layer].discard(expert)
            self.tally.wasted[layer] += 1

    def reclaim_scratch(self) -> None:
        """Free what a use that was given up left behind in the scratch slab."""
        for ticket in self.scratch.tickets.values():
            _wait_out(ticket)
        self.scratch.reset()

    def event(self) -> torch.cuda.Event | None:
        """Return an event behind all that was queued so far; None on a CPU."""
        if not self.cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    # ---- as it was

    def mend(self) -> None:
        """Restore what an exception tore."""
        if not self.changing.torn:
            return
        # A fetch may have begun whose ticket was lost.
        self.store.drain()
        if self.cuda:
            torch.cuda.synchronize(self.device)
        self._derive()

    def _derive(self) -> None:
        """Derive everything else from the entries of the layers."""
        for layer, slots in enumerate(self.layers):
            slots.restore()
            self.early[layer].intersection_update(slots.entries)
        self.changing.torn = False

    def clear(self) -> None:
        """Empty all slots and forget what was used."""
        # Fetches under way must not write into slots that were given to others.
        self.changing.torn = True
        for slots in self.layers:
            slots.entries.clear()
        self.rule = self._kind.make(*self.resident.shape)
        self._demand[:] = 0.0
        self.mend()

    def snapshot(self) -> Snapshot:
        """Return what is there and what is known of uses."""
        return Snapshot(
            [list(slots.entries) for slots in self.layers],
            deepcopy(self.rule),
            self._demand.copy(),
            deepcopy(self.tally),
            self.clock.seconds(),
        )

    def restore(self, snapshot: Snapshot, *, wait: bool) -> None:
        """Go back to a snapshot.

        Experts that are missing are fetched again, perhaps into other slots. With ``wait`` they are
        there at the end, but for those that cannot be had, which are left out; without, they are on
        their way.
        """
        self.reclaim_scratch()
        for layer, held in enumerate(snapshot.held):
            slots, kept = self.layers[layer], frozenset(held)
            self.drop_when_there(layer, [e for e in slots.entries if e not in kept])
            missing = [e for e in held if e not in slots.entries]
            with self.changing:
                for expert in missing:
                    self.bring(layer, expert)
            for expert in held if wait else ():
                if not slots.entries[expert].arrived():
                    self.drop(layer, expert)
        self.rule = snapshot.rule
        self._demand = snapshot.demand
        self.tally = snapshot.tally
        self.clock.reset(snapshot.wait_seconds)

    def drop_when_there(self, layer: int, experts: Sequence[int]) -> None:
        """Take experts out of the slots, where they are, once nothing writes to these any more."""
        entries = self.layers[layer].entries
        for expert in experts:
            if expert in entries:
                entries[expert].arrived()
                self.drop(layer, expert)


def _wait_out(ticket: Ticket) -> None:
    """Wait until a fetch is over whose result nobody wants."""
    with suppress(Exception):
        ticket.wait()
