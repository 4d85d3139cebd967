"""The expert cache: which experts are in fast memory, and how others get there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from operator import index
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specfit_opt.caches import CACHE_RULES, DEFAULT_CACHE_RULE

from ..errors import BusyError, InvalidInputError
from .counters import CacheCounters
from .expert_slots import ExpertSlots, Snapshot
from .layer_use import LayerUse
from .ready_batch import ReadyBatch
from .slabs import checked_scratch, checked_slots
from .tally import Tally

if TYPE_CHECKING:
    from specfit_opt.caches import CacheRule

    from ..stores.expert_store import ExpertStore


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
        :data:`~specfit_opt.caches.CACHE_RULES` that need not know the passes to come.
    scratch : int
        Slots of the slab through which experts pass that get no slot of their layer. With 2 or
        more, the next ones load while one is computed with. 0 is allowed where every layer has a
        slot for every expert.
    device : torch.device or str, optional
        Where the slabs lie; the store's.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, or the slabs do not fit into memory.

    Notes
    -----
    *A pass* over the layers begins with :meth:`begin_pass`; without it, all works the same. Within
    a pass, experts that a layer will probably use may be fetched early, by :meth:`prefetch`.

    *Evictions*: only experts that the current :meth:`use` does not name are ever evicted, so an
    expert that was found in a slot stays there until its batch was computed with. For the other
    slots, what is in them and what the pass brings in compete by the policy's ranking; who loses
    is evicted, or passes through the scratch slab and is gone. What :meth:`prefetch` asks for
    does not compete.

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
        policy: str = DEFAULT_CACHE_RULE,
        scratch: int,
        device: torch.device | str | None = None,
    ) -> None:
        self.n_layers, self.n_experts = store.index.n_layers, store.index.n_experts
        self.device = store.device if device is None else torch.device(device)
        if self.device.type != store.device.type:
            raise InvalidInputError(
                f"the store brings experts to {store.device}, the cache was to be on {self.device}"
            )
        self.slots = checked_slots(slots, self.n_layers, self.n_experts)
        self._rule = live_cache_rule(policy)
        self._moved = [int(n) for n in store.moved_bytes]
        self._slots = ExpertSlots(
            store,
            self.slots,
            checked_scratch(scratch, self.slots, self.n_experts),
            self._rule,
            self.device,
        )
        self._resident = self._slots.resident.view()
        self._resident.flags.writeable = False

    # ---- what is there

    @property
    def lock(self) -> RLock:
        """Guards the cache. Threads that share one hold it while they iterate over :meth:`use`."""
        return self._slots.lock

    @property
    def policy(self) -> str:
        """Name of the eviction rule."""
        return self._rule.name

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only live mask of shape (L, E): experts in a slot, or on their way into one."""
        return self._resident

    @property
    def n_bytes(self) -> int:
        """Bytes of all slabs, the scratch slab included."""
        slabs = [self._slots.scratch.slab, *(layer.slab for layer in self._slots.layers)]
        return sum(slab.numel() * slab.element_size() for slab in slabs)

    def counters(self) -> CacheCounters:
        """Return what was done since the cache was made, or the counters were reset."""
        with self.lock:
            return self._slots.tally.counters(self._moved, self._slots.clock.seconds())

    def reset_counters(self) -> None:
        """Set all counters to zero; what is in the slots stays."""
        with self.lock:
            self._slots.tally = Tally.of(self.n_layers)
            self._slots.clock.reset()

    def clear(self) -> None:
        """Empty all slots and forget what was used: as the cache was made, counters aside.

        Raises
        ------
        BusyError
            If a :meth:`use` is not over.
        """
        with self.lock:
            if self._slots.in_use is not None:
                raise BusyError("experts of the cache are in use; clear it when the pass is over")
            self._slots.clear()

    def snapshot(self) -> Snapshot:
        """End the pass, and return what :meth:`restore` goes back to.

        Returns
        -------
        Snapshot
            Which experts are there, what is known of uses, and the counters; no weights.
        """
        with self.lock:
            self.end_pass()
            return self._slots.snapshot()

    def restore(self, snapshot: Snapshot, *, wait: bool = True) -> None:
        """End the pass, and go back to which experts were there, what was known, and the counters.

        Parameters
        ----------
        snapshot : Snapshot
            Of this cache; to be restored once.
        wait : bool
            Whether to wait for experts that have to be fetched again. One that cannot be is left
            out, and its next use says why.
        """
        with self.lock:
            self.end_pass()
            self._slots.restore(snapshot, wait=wait)

    def drop(self, layer: int, experts: Iterable[int]) -> None:
        """Take experts out of a layer's slots, where they are; the next use fetches them again.

        Parameters
        ----------
        layer : int
            Not in use.
        experts : iterable of int
        """
        with self.lock:
            self._slots.mend()
            self._slots.drop_when_there(layer, list(experts))

    # ---- passes

    def begin_pass(self) -> None:
        """Begin a pass over the layers, and end the one before."""
        self.end_pass()

    def end_pass(self, tokens: int = 1) -> None:
        """End the pass: what was fetched early for it and not used is wasted.

        Parameters
        ----------
        tokens : int
            What the pass committed, for eviction rules that count in tokens.
        """
        with self.lock:
            slots = self._slots
            slots.mend()
            slots.rule.committed(tokens)
            slots.pace.look()
            for layer, early in enumerate(slots.early):
                if early:
                    slots.settle(layer, ())

    def transfer_seconds(self, layer: int) -> float:
        """Return how long bringing in one expert of a layer took lately; 0 if none was moved."""
        return self._slots.pace.seconds(layer)

    def prefetch(self, layer: int, experts: Sequence[int], spared: Sequence[int] = ()) -> int:
        """Begin to fetch experts that a layer will probably use in this pass, behind all others.

        Parameters
        ----------
        layer : int
        experts : sequence of int
            The likeliest first: what finds no slot is dropped. They take free slots and those of
            experts that are not in use, not spared and rank lowest. Never blocks.
        spared : sequence of int
            What else the layer will probably use.

        Returns
        -------
        int
            Bytes that the fetches will move, unless they are given up before they begin.

        Raises
        ------
        InvalidInputError
            If the layer or an expert is not there.
        StoreError
            If the store is closed. Whether a fetch fails shows when the expert is used.
        """
        self._check(layer, experts)
        with self.lock:
            slots = self._slots
            slots.mend()
            own = slots.layers[layer]
            missing = [e for e in dict.fromkeys(map(index, experts)) if e not in own.entries]
            lacking = len(missing) - len(own.free)
            victims = []
            if lacking > 0:
                kept = slots.early[layer].union(spared, experts)
                if slots.in_use is not None and slots.in_use.layer == layer:
                    kept |= slots.in_use.experts
                candidates = [
                    expert
                    for expert, entry in own.entries.items()
                    if expert not in kept and (entry.ticket is None or entry.ticket.done())
                ]
                victims = slots.victims(layer, candidates, lacking)
                del missing[len(own.free) + len(victims) :]
            if not missing:
                return 0
            slots.note_load(layer, missing)
            with slots.changing:
                for expert in missing:
                    if not own.free:
                        slots.evict(layer, victims.pop(0))
                    slots.bring(layer, expert, early=True)
                    slots.tally.prefetched[layer] += 1
                    slots.early[layer].add(expert)
            return len(missing) * self._moved[layer]

    def use(
        self,
        layer: int,
        experts: Sequence[int],
        demand: Sequence[int],
        meanwhile: Callable[[int], None] | None = None,
    ) -> Generator[ReadyBatch, None, None]:
        """Bring experts into fast memory and hand them out as they get there.

        Parameters
        ----------
        layer : int
        experts : sequence of int
            Distinct ids: all that this pass uses in the layer.
        demand : sequence of int
            How many tokens use each of them. Among experts that are equal to the eviction rule,
            those asked for most get the slots.
        meanwhile : callable, optional
            ``meanwhile(n)`` is called once all fetches that can begin have begun and before the
            first is waited for, with how many experts still have to come.

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
        use = LayerUse(self._slots, layer, experts, demand, meanwhile)
        if len(use.experts) != len(experts) or len(demand) != len(experts):
            raise InvalidInputError(
                f"{len(experts)} experts of which {len(use.experts)} are distinct were given, and "
                f"the demand for {len(demand)}; name each once"
            )
        return use.batches()

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


def live_cache_rule(name: str) -> CacheRule:
    """Return the eviction rule of that name for a cache that does not know the passes to come.

    Raises
    ------
    InvalidInputError
        If there is none, or it must know them.
    """
    rule = CACHE_RULES.find(name)
    if rule.clairvoyant:
        raise InvalidInputError(
            f"cache policy {name!r} must know all passes beforehand, which only a replay does; "
            f"choose another, such as {DEFAULT_CACHE_RULE}"
        )
    return rule
