"""Random histories of the cache against a model of it that is too simple to be wrong.

The model is a set of residents per layer. What the cache may do follows from the sets before and
after each step; every number of the counters follows from them too. Fetches end at random moments,
some fail, and iterations are given up at random points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from manual_store import LIVE_RULES, ManualStore, check_batch, layouts_of, use_all

from specfit_runtime.errors import StoreError
from specfit_runtime.expert_cache import CacheCounters, ExpertCache

N_EXPERTS = 6
WIDTHS = (16, 32)
MOVED = (64, 1000)

layers = st.integers(0, len(WIDTHS) - 1)
experts = st.lists(st.integers(0, N_EXPERTS - 1), unique=True, max_size=N_EXPERTS)


class CacheHistory(RuleBasedStateMachine):
    policy = "lru"

    @initialize(
        slots=st.tuples(st.integers(1, N_EXPERTS), st.integers(1, N_EXPERTS)),
        scratch=st.integers(1, 4),
        seed=st.one_of(st.none(), st.integers(0, 1000)),
    )
    def make(self, slots: tuple[int, int], scratch: int, seed: int | None) -> None:
        self.store = ManualStore(layouts_of(WIDTHS), N_EXPERTS, seed=seed, moved_bytes=MOVED)
        self.cache = ExpertCache(self.store, slots, policy=self.policy, scratch=scratch)
        self.slots, self.scratch = slots, scratch
        self.unused: list[set[int]] = [set(), set()]  # fetched early, not used yet
        self.hits = self.evictions = self.prefetch_hits = self.bypassed = self.scratch_rounds = 0
        self.streamed: list[int] = []
        self.misses, self.prefetched, self.wasted = [0, 0], [0, 0], [0, 0]

    def residents(self, layer: int) -> set[int]:
        return set(np.flatnonzero(self.cache.resident[layer]).tolist())

    def fetches(self) -> int:
        return len(self.store.fetched)

    def note_evicted(self, layer: int, gone: set[int]) -> None:
        self.evictions += len(gone)
        self.wasted[layer] += len(gone & self.unused[layer])
        self.unused[layer] -= gone

    def settle(self, layer: int, used: list[int]) -> None:
        """Follow what a use does with early experts."""
        found = self.unused[layer] & set(used)
        self.prefetch_hits += len(found)
        self.wasted[layer] += len(self.unused[layer] - found)
        self.unused[layer].clear()

    def note_start(self, layer: int, used: list[int], demand: list[int]) -> None:
        """Follow what a use does before its first batch; called with the residents of before."""
        before, self.streamed = self.before, []
        missing = [e for e in used if e not in before]
        self.hits += len(used) - len(missing)
        self.settle(layer, used)
        after = self.residents(layer)
        gone, came = before - after, after - before
        assert not gone & set(used)
        assert came <= set(missing)
        # No slot stays free that a missing expert could have had.
        lost = gone & self.failed
        if not lost:
            assert len(after) == min(len(before) + len(missing), self.slots[layer])
        # What failed and was not used may have been evicted or dropped: both are right.
        self.note_evicted(layer, gone - lost)
        self.evictions = self.cache.counters().evictions if lost else self.evictions
        self.streamed = [e for e in missing if e not in came]
        self.bypassed += len(self.streamed)
        self.scratch_rounds += -(-len(self.streamed) // self.scratch)
        self.misses[layer] += len(came)
        if self.policy == "lru":
            # What comes is newer than what is idle, and of what comes what most tokens ask for.
            assert not self.streamed or before - gone - self.flying <= set(used)
            by_demand = dict(zip(used, demand, strict=True))
            missing.sort(key=lambda e: (by_demand[e], e))
            assert self.streamed == [e for e in used if e in missing[: len(self.streamed)]]

    @rule(layer=layers, used=experts, data=st.data())
    def use(self, layer: int, used: list[int], data: Any) -> None:
        demand = data.draw(st.lists(st.integers(1, 5), min_size=len(used), max_size=len(used)))
        stop_after = data.draw(st.one_of(st.none(), st.integers(1, 4)))
        ahead = data.draw(st.one_of(st.none(), experts)) if used else None
        bad = data.draw(st.sets(st.sampled_from(used), max_size=1)) if used else set()
        self.store.failing = {(layer, e) for e in bad}
        self.before = self.residents(layer)
        entries = self.cache._slots.layers[layer].entries
        self.flying = {e for e, entry in entries.items() if entry.ticket is not None}
        self.failed = {e for e in self.flying if entries[e].ticket.failed}
        seen: list[int] = []
        lost: list[int] = []
        batches = self.cache.use(layer, used, demand)
        try:
            for n, batch in enumerate(batches):
                if n == 0:
                    self.note_start(layer, used, demand)
                check_batch(batch, layer)
                seen += batch.experts
                if ahead is not None:
                    self.prefetch_checked(layer, ahead, in_use=set(used))
                    check_batch(batch, layer)
                    ahead = None
                if n + 1 == stop_after:
                    break
            if not used:
                self.settle(layer, used)
        except StoreError as error:
            lost = [e for e in used if str(error).startswith(f"layer {layer}, expert {e}:")]
            assert len(lost) == 1
        finally:
            batches.close()
            self.store.failing.clear()
        assert len(seen) == len(set(seen))
        if lost:
            assert lost[0] not in self.residents(layer)
            assert lost[0] not in seen
            self.sync()
        elif sorted(seen) == sorted(used):
            self.misses[layer] += len(self.streamed) if used else 0
        else:
            assert stop_after is not None
            self.sync()

    def sync(self) -> None:
        """Take over what a use that ended early did; the sums of the counters are still checked.

        How far it got with the scratch slab, or which fetch failed first, is a matter of chance.
        """
        counters = self.cache.counters()
        by_layer = [sum(1 for at, _ in self.store.fetched if at == layer) for layer in (0, 1)]
        # Fetches are the one thing known from outside.
        for layer in (0, 1):
            self.misses[layer] = by_layer[layer] - self.prefetched[layer]
        self.hits = counters.hits
        self.evictions, self.scratch_rounds = counters.evictions, counters.scratch_rounds
        self.prefetch_hits, self.bypassed = counters.prefetch_hits, counters.bypassed
        slots = self.cache._slots
        self.unused = [set(early) for early in slots.early]
        self.wasted = list(slots.tally.wasted)

    def prefetch_checked(self, layer: int, wished: list[int], in_use: set[int]) -> None:
        before, fetched = self.residents(layer), self.fetches()
        moved = self.cache.prefetch(layer, wished)
        after = self.residents(layer)
        new = self.store.fetched[fetched:]
        assert moved == len(new) * MOVED[layer]
        # The likeliest of the missing, in their order.
        missing = [e for e in wished if e not in before]
        assert new == [(layer, e) for e in missing[: len(new)]]
        gone = before - after
        assert not gone & in_use
        assert not gone & (set(wished) | self.unused[layer])
        assert after == (before - gone) | set(missing[: len(new)])
        assert len(gone) == max(0, len(before) + len(new) - self.slots[layer])
        self.note_evicted(layer, gone)
        self.prefetched[layer] += len(new)
        self.unused[layer] |= set(missing[: len(new)])

    @rule(layer=layers, wished=experts)
    def prefetch(self, layer: int, wished: list[int]) -> None:
        self.prefetch_checked(layer, wished, set())

    @rule(layer=layers, wished=experts, data=st.data())
    def prefetch_that_fails(self, layer: int, wished: list[int], data: Any) -> None:
        missing = sorted(set(wished) - self.residents(layer))
        if not missing:
            return
        bad = data.draw(st.sampled_from(missing))
        self.store.failing = {(layer, bad)}
        self.prefetch_checked(layer, wished, set())
        self.store.failing.clear()

    @rule(begin=st.booleans())
    def next_pass(self, begin: bool) -> None:
        if begin:
            self.cache.begin_pass()
        else:
            self.cache.end_pass()
        for layer in (0, 1):
            self.wasted[layer] += len(self.unused[layer])
            self.unused[layer].clear()

    @rule()
    def time_passes(self) -> None:
        self.store.drain()

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert not self.cache.resident.any()
        self.unused = [set(), set()]

    @invariant()
    def counters_are_the_models(self) -> None:
        if not hasattr(self, "cache"):
            return
        counters = self.cache.counters()
        misses = sum(self.misses)
        expected = CacheCounters(
            lookups=self.hits + misses,
            hits=self.hits,
            misses=misses,
            evictions=self.evictions,
            bytes=sum(
                (m + p) * b for m, p, b in zip(self.misses, self.prefetched, MOVED, strict=True)
            ),
            prefetched=sum(self.prefetched),
            prefetch_hits=self.prefetch_hits,
            prefetch_bytes=sum(p * b for p, b in zip(self.prefetched, MOVED, strict=True)),
            wasted_prefetch_bytes=sum(w * b for w, b in zip(self.wasted, MOVED, strict=True)),
            bypassed=self.bypassed,
            scratch_rounds=self.scratch_rounds,
            wait_seconds=counters.wait_seconds,
        )
        assert counters == expected
        assert counters.bytes == self.store.counters().bytes

    @invariant()
    def never_more_than_the_slots(self) -> None:
        if hasattr(self, "cache"):
            for layer in (0, 1):
                assert len(self.residents(layer)) <= self.slots[layer]

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        # Whatever was going on, what claims to be there is there, and all else can be had.
        for layer in (0, 1):
            while True:
                try:
                    use_all(self.cache, layer, sorted(self.residents(layer)))
                    break
                except StoreError:
                    continue  # a prefetch was made to fail, which shows now
            use_all(self.cache, layer, range(N_EXPERTS))


@pytest.mark.parametrize("policy", LIVE_RULES)
def test_history(policy: str) -> None:
    machine = type("History", (CacheHistory,), {"policy": policy})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=25))
