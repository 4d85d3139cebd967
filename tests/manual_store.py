"""A store whose fetches end when a test says so, for tests of what uses stores.

Every record is filled with one number that tells its layer and expert, and a slot is filled with
NaN the moment its fetch begins: computing too early, or with an expert that was overwritten, shows.
A fetch whose ticket was lost still writes into its slot, at a random moment.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from specfit_opt.caches import CACHE_RULES
from specfit_runtime.checkpoint import RecordLayout
from specfit_runtime.errors import StoreError
from specfit_runtime.expert_cache import ExpertCache, ReadyBatch
from specfit_runtime.stores import ExpertStore, StoreCounters, Ticket

#: Eviction rules that an expert cache can follow.
LIVE_RULES = [name for name, rule in CACHE_RULES.items() if not rule.clairvoyant]


def layouts_of(widths: Sequence[int], dtype: torch.dtype = torch.float32) -> list[RecordLayout]:
    """Return the layouts of records that hold one vector of each width."""
    return [RecordLayout.of([("weight", (width,))], dtype) for width in widths]


class ManualStore(ExpertStore):
    """Brings experts when told to, or at random moments, or not at all.

    Parameters
    ----------
    layouts : sequence of RecordLayout
        One per layer.
    n_experts : int
    records : list of Tensor, optional
        Per layer, shape (E, n_elements); by default every element is :meth:`content`.
    seed : int or None
        Of the moments at which fetches end; None: only :meth:`Ticket.wait` ends one.
    """

    name = "manual"

    def __init__(
        self,
        layouts: Sequence[RecordLayout],
        n_experts: int,
        *,
        records: Sequence[torch.Tensor] | None = None,
        seed: int | None = 0,
        moved_bytes: Sequence[int] | None = None,
    ) -> None:
        sizes = [layout.n_bytes for layout in layouts]
        self.index: Any = SimpleNamespace(
            layouts=tuple(layouts),
            n_layers=len(layouts),
            n_experts=n_experts,
            record_bytes=np.array(sizes, dtype=np.int64),
        )
        self.device = torch.device("cpu")
        self.moved_bytes = np.array(moved_bytes or sizes, dtype=np.int64)
        self.records = records
        self.random = None if seed is None else random.Random(seed)
        #: (layer, expert) of every fetch, in order.
        self.fetched: list[tuple[int, int]] = []
        #: Experts whose next fetch fails.
        self.failing: set[tuple[int, int]] = set()
        #: Called with every fetch, before and after it began; may raise.
        self.on_fetch: Any = lambda moment: None
        #: What the counters say that each fetch took.
        self.seconds_per_fetch = 0.0
        self.under_way: list[ManualTicket] = []
        self.closed = False

    @staticmethod
    def content(layer: int, expert: int) -> float:
        """Return what the record of an expert is filled with."""
        return 1000.0 * layer + expert + 1.0

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        assert after is None
        assert out.shape == (self.index.layouts[layer].n_elements,)
        assert out.is_contiguous()
        if self.closed:
            raise StoreError("closed")
        self.on_fetch("before")
        self.fetched.append((layer, expert))
        ticket = ManualTicket(self, layer, expert, out)
        self.under_way.append(ticket)
        self.on_fetch("after")
        self.stir()
        return ticket

    def stir(self) -> None:
        """Let time pass: a random one of the fetches under way may end."""
        if self.random is not None and self.under_way and self.random.random() < 0.3:
            self.random.choice(self.under_way).end()

    def drain(self) -> None:
        while self.under_way:
            self.under_way[0].end()

    def counters(self) -> StoreCounters:
        n_bytes = sum(int(self.moved_bytes[layer]) for layer, _ in self.fetched)
        seconds = len(self.fetched) * self.seconds_per_fetch
        return StoreCounters(fetches=len(self.fetched), bytes=n_bytes, seconds=seconds)

    def close(self) -> None:
        self.closed = True


class ManualTicket(Ticket):
    """One fetch of a :class:`ManualStore`."""

    def __init__(self, store: ManualStore, layer: int, expert: int, out: torch.Tensor) -> None:
        self.store, self.layer, self.expert, self.out = store, layer, expert, out
        self.over = False
        #: Tests set it to False for an early fetch that has not begun.
        self.begun = True
        self.failed = (layer, expert) in store.failing
        store.failing.discard((layer, expert))
        out.fill_(torch.nan)

    def end(self) -> None:
        """Write the record, unless the fetch fails."""
        if self.over:
            return
        self.over = True
        self.store.under_way.remove(self)
        if self.failed:
            self.out.fill_(torch.nan)
        elif self.store.records is None:
            self.out.fill_(self.store.content(self.layer, self.expert))
        else:
            self.out.copy_(self.store.records[self.layer][self.expert])

    def done(self) -> bool:
        self.store.stir()
        return self.over

    def promote(self) -> None:
        self.begun = True

    def cancel(self) -> bool:
        if self.begun:
            return False
        self.over = self.failed = True
        self.store.under_way.remove(self)
        self.store.fetched.remove((self.layer, self.expert))
        return True

    def wait(self) -> None:
        self.store.stir()
        self.end()
        if self.failed:
            raise StoreError(f"layer {self.layer}, expert {self.expert}: made to fail")


def check_batch(batch: ReadyBatch, layer: int) -> None:
    """Check that a batch of a :class:`ManualStore` holds the experts that it names."""
    assert len(batch.experts) == len(batch.slots) == len(set(batch.slots)) > 0
    for expert, slot in zip(batch.experts, batch.slots, strict=True):
        record = batch.slab[slot]
        assert bool((record == ManualStore.content(layer, expert)).all()), (layer, expert, record)


def use_all(
    cache: ExpertCache,
    layer: int,
    experts: Sequence[int],
    demand: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    """Use experts, check every batch, and return the experts of the batches."""
    batches = []
    for batch in cache.use(layer, experts, demand or [1] * len(experts)):
        check_batch(batch, layer)
        batches.append(batch.experts)
    assert sorted(e for batch in batches for e in batch) == sorted(experts)
    return batches
