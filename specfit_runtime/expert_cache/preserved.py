"""Uses an expert cache on the side, for instance to measure, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

from .layer_slots import Entry

if TYPE_CHECKING:
    from .cache import ExpertCache

#: The cache's counters: those by layer, and the plain ones.
_BY_LAYER = ("_hits", "_misses", "_ahead", "_wasted")
_PLAIN = ("_ahead_hits", "_evictions", "_bypassed", "_waves")


@contextmanager
def preserved(cache: ExpertCache) -> Iterator[None]:
    """Restore at the end of the block which experts are there, who goes next, and the counters.

    Whatever a pass prefetched before the block counts as used or wasted then. Experts that the
    block lost are fetched again; one that cannot be is left out, and its next use says why. After
    an interrupt they are still on their way when the block is left.

    Parameters
    ----------
    cache : ExpertCache

    Notes
    -----
    Experts may come back in other slots than before. The store's own counters go on counting: they
    say what was moved, and it was.
    """
    cache.end_pass()
    with cache.lock:
        held = [list(slots.entries) for slots in cache._layers]
        policy = deepcopy(cache._policy)
        by_layer = {name: list(getattr(cache, name)) for name in _BY_LAYER}
        plain = {name: getattr(cache, name) for name in _PLAIN}
        waited = cache._clock.seconds()
    patient = False
    try:
        yield
        patient = True
    except Exception:
        patient = True
        raise
    finally:
        with cache.lock:
            cache.end_pass()
            cache._reclaim_scratch()
            for layer, experts in enumerate(held):
                _hold_only(cache, layer, experts, patient)
            cache._policy = policy
            for name, counts in by_layer.items():
                setattr(cache, name, counts)
            for name, count in plain.items():
                setattr(cache, name, count)
            cache._clock.reset(waited)


def drop(cache: ExpertCache, layer: int, experts: Iterable[int]) -> None:
    """Take experts out of a layer's slots, where they are; the next use fetches them again.

    Parameters
    ----------
    cache : ExpertCache
        Not in use.
    layer : int
    experts : iterable of int
    """
    with cache.lock:
        cache._mend()
        slots = cache._layers[layer]
        for expert in experts:
            entry = slots.entries.get(expert)
            if entry is None:
                continue
            _arrived(entry)
            cache._torn = True
            slots.drop(expert)
            cache._unused[layer].discard(expert)
            cache._torn = False


def _hold_only(cache: ExpertCache, layer: int, experts: list[int], patient: bool) -> None:
    slots = cache._layers[layer]
    wanted = frozenset(experts)
    drop(cache, layer, [e for e in slots.entries if e not in wanted])
    missing = [e for e in experts if e not in slots.entries]
    cache._torn = True
    for expert in missing:
        slot = slots.free.pop()
        ticket = cache._store.fetch(layer, expert, slots.rows[slot], slots.read[slot])
        slots.hold(expert, Entry(slot, ticket))
    cache._torn = False
    # After an interrupt nobody waits; an expert that cannot be had is missed when it is used.
    for expert in missing if patient else ():
        if not _arrived(slots.entries[expert]):
            drop(cache, layer, [expert])


def _arrived(entry: Entry) -> bool:
    """Wait until nothing writes to the slot any more, and return whether the expert is in it."""
    if entry.ticket is None:
        return True
    try:
        entry.ticket.wait()
    except Exception:
        return False
    entry.ticket = None
    return True
