"""Decoding with a random model of the shape of Qwen3-30B-A3B, its experts in host memory.

The drafter is played: it proposes what plain decoding wrote, is right in a fixed share of the
positions, and costs next to nothing. A random model has no better one, and with none accepted or
none drafted there would be nothing to measure. A random model routes nearly at random,
so its hit rates are lower than those of a trained one.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt.caches import slots_per_layer
from specfit_runtime import SpecFit
from specfit_runtime.checkpoint import ExpertIndex
from specfit_runtime.drafters import Candidates, Drafter
from specfit_runtime.expert_cache import default_scratch
from specfit_runtime.load import attach_experts
from specfit_runtime.report import DecodeReport
from specfit_runtime.stores import ExpertStore, StoreCounters, Ticket
from specfit_runtime.stores.host_memory import allocate, available_bytes

from .copies import open_memory_store
from .equality import first_difference, greedy
from .models import fill_slabs, index_without_files, large_config, random_prompt, skeleton
from .table import FIGURE, NO_ROOM, Table

if TYPE_CHECKING:
    from .runner import Machine

PART = "decode"
POLICIES = ("ar", "specfit", "chain-2", "eagle-16")
SHARES = (0.25, 0.5)
#: Seconds that one row may decode for, and what it may need beside that: calibration, and a pass
#: that had begun.
_ROW_SECONDS, _ROW_EXTRA = 25.0, 10.0
#: Share of the positions at which the played drafter's first child is right.
_RIGHT = 0.7
#: For what is not experts: weights, keys and values, activations, cuBLAS.
_DEVICE_EXTRA = 6e9


def check(machine: Machine, table: Table) -> None:
    name = "model"
    # Making it, on an ordinary machine.
    if not table.reached(PART, name, "model", 5.0 if machine.small else 90.0):
        return
    config = large_config(machine.small)
    index = index_without_files(config, torch.bfloat16)
    needed = index.n_experts * int(index.record_bytes.sum())
    free = available_bytes()
    if free is not None and needed > free:
        table.add(PART, name, NO_ROOM, f"{needed / 1e9:.1f} GB of experts, {free / 1e9:.1f} free")
        return
    store: ExpertStore | None = None
    with table.step(PART, name, "model"):
        store = _make_experts(machine, table, index)
    if store is None:
        return
    extra = 0.0 if machine.small else 2.0 * _ROW_EXTRA
    with store:
        written: list[int] | None = None
        for share in SHARES:
            case = f"{share:.0%} cached"
            slots = slots_per_layer(
                share,
                n_experts=index.n_experts,
                record_bytes=index.record_bytes.tolist(),
                scratch=default_scratch(index.n_experts, index.top_k),
            )
            on_device = sum(slots) * int(index.record_bytes[0])
            on_device += 0 if machine.small else _DEVICE_EXTRA
            if machine.cuda and on_device > torch.cuda.mem_get_info(machine.device)[0]:
                table.add(PART, case, NO_ROOM, f"needs {on_device / 1e9:.0f} GB on the device")
                continue
            if table.reached(PART, f"{case}, {', '.join(POLICIES)}", case, extra):
                with table.step(PART, case, case):
                    written = _decode(machine, table, config, store, slots, case, written)
            gc.collect()
            if machine.cuda:
                torch.cuda.empty_cache()


def _make_experts(machine: Machine, table: Table, index: ExpertIndex) -> ExpertStore:
    """Return a store of random experts; rows say what it took."""
    begin = perf_counter()
    process = psutil.Process()
    before = process.memory_info().rss
    slabs = [
        allocate(index.n_experts * layout.n_elements, layout.dtype).view(
            index.n_experts, layout.n_elements
        )
        for layout in index.layouts
    ]
    # The system hands out pages when they are first written to; several threads make that quicker.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda slab: slab.view(-1)[:: 4096 // slab.element_size()].zero_(), slabs))
    store = open_memory_store(machine, index, slabs)
    locked = perf_counter()
    fill_slabs(index, slabs, machine.device)
    if machine.cuda:
        torch.cuda.empty_cache()
    needed = index.n_experts * int(index.record_bytes.sum())
    grown = process.memory_info().rss - before
    table.add(
        PART,
        "model",
        FIGURE,
        f"{index.n_layers} layers, {index.n_experts} experts, {needed / 1e9:.2f} GB of experts in "
        f"memory that grew by {grown / 1e9:.2f} GB; {locked - begin:.0f} s to get "
        f"{'and lock ' if machine.cuda else ''}it, {perf_counter() - locked:.0f} s to fill it",
    )
    return store


def _decode(
    machine: Machine,
    table: Table,
    config: Any,
    store: ExpertStore,
    slots: Sequence[int],
    case: str,
    written: list[int] | None,
) -> list[int] | None:
    """Add a row per policy.

    Returns the text of the first plain decoding, which is ``written`` if that is known already.
    """
    model, family = skeleton(config, torch.bfloat16, machine.device)
    offload = attach_experts(
        model,
        family,
        Lent(store),
        slots,
        scratch=default_scratch(store.index.n_experts, store.index.top_k),
        source="memory",
    )
    prompt = random_prompt(32, int(config.vocab_size), machine.device)
    n_new = 16 if machine.small else 48
    with offload:
        greedy(model, prompt, 3)  # loads kernels
        for policy in POLICIES:
            row = f"{case}, {policy}"
            if policy != "ar" and written is None:
                return None  # what the drafter would be played from; the row of ar says why
            # A row ends when its time is over, so it needs no more than what it takes besides.
            if not table.reached(PART, row, row, 0.0 if machine.small else _ROW_EXTRA):
                continue
            with table.step(PART, row, row):
                drafter = None if policy == "ar" else PlayedDrafter(written or [])
                spec = SpecFit(drafter, policy=policy)
                offload.cache.clear()
                before = store.counters()
                # A share of what is left, so that every policy gets its turn.
                most = max(1.0, min(_ROW_SECONDS, table.left / 2.0))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="drafter .* the target accepted")
                    text = greedy(model, prompt, n_new, custom_generate=spec, max_time=most)
                moved = store.counters() - before
                table.add(
                    PART,
                    row,
                    FIGURE,
                    f"{_figures(spec.report, moved)}; {_compared(text, written, prompt)}",
                )
                if written is None:
                    written = text
    return written


def _figures(report: DecodeReport, moved: StoreCounters) -> str:
    totals = report.totals
    if not totals.tokens:
        return "no pass after the prompt's"
    per_token = ", ".join(
        f"{what} {1e3 * seconds / totals.tokens:.1f}"
        for what, seconds in (
            ("draft", totals.draft_seconds),
            ("search", totals.search_seconds),
            ("wait", totals.transfer_seconds),
            ("compute", totals.verify_seconds),
            ("other", totals.other_seconds),
        )
    )
    # The store's own measure; the prompt's pass and a calibration are in it.
    speed = moved.bytes / moved.seconds / 1e9 if moved.seconds else float("nan")
    return (
        f"{totals.tokens_per_second:.2f} tok/s, {totals.tokens_per_pass:.2f} tok/pass, "
        f"{totals.hit_rate:.0%} hits, {totals.bytes_per_token / 1e6:,.2f} MB/tok, transfers at "
        f"{speed:.1f} GB/s; ms/tok: {per_token}"
    )


def _compared(text: list[int], written: list[int] | None, prompt: Tensor) -> str:
    """Say how a text compares with the first one; in bfloat16 a difference is no error."""
    n_new = len(text) - prompt.shape[1]
    if written is None:
        return f"{n_new} tokens"
    common = min(len(text), len(written))
    n = common - prompt.shape[1]
    flips = sum(a != b for a, b in zip(text[:common], written[:common], strict=True))
    if not flips:
        return f"the same {n} tokens"
    first = first_difference(text, written, prompt)
    return f"{flips} of {n} tokens differ from the first row's, from token {first} on"


class PlayedDrafter(Drafter):
    """Proposes a text that is known, not always right.

    Parameters
    ----------
    script : list of int
        Prompt and continuation.
    """

    name: ClassVar[str] = "played"

    def __init__(self, script: list[int]) -> None:
        super().__init__()
        self._script = script
        self._rng = np.random.default_rng(0)
        self._width = 1
        # Which expanded node, and which candidate, lies on the script; -1: none does.
        self._on_script = self._candidate = -1

    def _bind(self, model: Any) -> None:
        return

    def _restart(self, token: int) -> None:
        self._rng = np.random.default_rng(0)

    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        return

    def _children(self, depth: int, top_k: int) -> Candidates:
        vocabulary = self._vocab_size or 1
        if depth == 0:
            self._width, self._on_script = 1, 0
        n, k = self._width, min(top_k, vocabulary)
        # Distinct within a row, as the step has no factor in common with the vocabularies here.
        first = self._rng.integers(0, vocabulary, (n, 1))
        token = (first + 7919 * np.arange(k)) % vocabulary
        place = self.length + depth
        rank = 0 if self._rng.random() < _RIGHT else 1
        self._candidate = -1
        if self._on_script >= 0 and place < len(self._script) and rank < k:
            row, right = token[self._on_script], self._script[place]
            row[row == right] = row[rank]
            row[rank] = right
            self._candidate = self._on_script * k + rank
        # 0.48 for the first: what is left to the others falls by halves.
        prob = np.tile(0.48 * 0.5 ** np.arange(k), n)
        return Candidates(np.repeat(np.arange(n), k), token.reshape(-1), prob)

    def _descend(self, found: Candidates, chosen: NDArray[np.int64]) -> None:
        self._width = len(chosen)
        at = np.flatnonzero(chosen == self._candidate)
        self._on_script = int(at[0]) if len(at) else -1


class Lent(ExpertStore):
    """Another store, which outlives the model that has this one."""

    def __init__(self, store: ExpertStore) -> None:
        self._store = store
        self.name, self.index, self.device = store.name, store.index, store.device
        self.moved_bytes = store.moved_bytes

    def fetch(
        self,
        layer: int,
        expert: int,
        out: Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        return self._store.fetch(layer, expert, out, after, early=early)

    def counters(self) -> StoreCounters:
        return self._store.counters()

    def drain(self) -> None:
        self._store.drain()

    def close(self) -> None:
        """Wait for what is under way; the slots may go afterwards."""
        self._store.drain()
