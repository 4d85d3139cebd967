"""The timers: what they count and what they make of it, on clocks and stores of the tests' own."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_prompt

from specfit_runtime import offload_of
from specfit_runtime.calibration import Quartiles
from specfit_runtime.calibration.draft_times import DraftTimer
from specfit_runtime.calibration.fetch_times import FetchTimer
from specfit_runtime.calibration.likely_tree import likely_tree
from specfit_runtime.calibration.measure import _expert_time
from specfit_runtime.calibration.pass_times import MissCost, PassTimer, TimedPass
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.verify import TargetSession

# ---- passes


def timer_of(passes: dict[int, list[TimedPass]], misses: list[MissCost]) -> PassTimer:
    rng = np.random.default_rng(0)
    timer = PassTimer(None, None, [], [], rng)  # type: ignore[arg-type]
    timer.passes, timer.misses = passes, misses
    return timer


def timed(seconds: float, waited: float = 0.0, misses: int = 0) -> TimedPass:
    return TimedPass(seconds, waited, misses, None)  # type: ignore[arg-type]


def test_waiting_and_handling_are_taken_out_of_a_pass() -> None:
    misses = [MissCost(0.003, 0.002), MissCost(0.009, 0.002), MissCost(0.0025, 0.002)]
    timer = timer_of({1: [timed(0.5), timed(0.6)], 8: [timed(1.0, 0.3, 100)]}, misses)
    assert timer.handling_seconds() == pytest.approx(0.001)
    assert timer.node_seconds(1) == [0.5, 0.6]
    assert timer.node_seconds(8) == pytest.approx([1.0 - 0.3 - 100 * 0.001])


def test_a_pass_keeps_a_time_however_noisy_the_machine() -> None:
    timer = timer_of({1: [timed(0.1, 0.05, 100)]}, [MissCost(0.01, 0.0)])
    assert timer.node_seconds(1) == pytest.approx([0.002])
    # A machine that was quicker without the experts tells nothing of handling.
    assert timer_of({}, [MissCost(-0.01, 0.001)]).handling_seconds() == 0.0
    assert timer_of({}, []).handling_seconds() == 0.0


@pytest.mark.parametrize("store", ["disk", "ram"])
def test_passes_have_their_experts_in_place_and_then_lack_half(load: Any, store: str) -> None:
    model = load(store=store)
    offload = offload_of(model)
    session = TargetSession(model)
    session.prefill(tiny_prompt())
    tokens, parent = likely_tree(session, 5, 6)
    timer = PassTimer(offload, session, tokens, parent, np.random.default_rng(0))
    for size in (6, 1, 6, 3):
        timer.time(size)
    assert {size: len(passes) for size, passes in timer.passes.items()} == {6: 2, 1: 1, 3: 1}
    for size, passes in timer.passes.items():
        for one in passes:
            assert one.misses == 0
            assert one.wait_seconds == 0.0
            assert one.experts.shape == (size, 3, 2)
            assert one.seconds > 0.0
    assert len(timer.misses) == 4
    assert session.length == tiny_prompt().shape[1]
    counters = offload.cache.counters()
    assert counters.hits + counters.misses == counters.lookups
    assert counters.misses > 0


def test_passes_that_never_fit_are_timed_all_the_same(load: Any) -> None:
    model = load(expert_cache=1, scratch=2)
    session = TargetSession(model)
    session.prefill(tiny_prompt())
    tokens, parent = likely_tree(session, 5, 4)
    timer = PassTimer(offload_of(model), session, tokens, parent, np.random.default_rng(0))
    timer.time(4)
    assert timer.passes[4][0].misses >= 3 * (2 - 1)
    assert timer.misses == []
    assert timer.node_seconds(4)[0] > 0.0


# ---- the tree


@pytest.mark.parametrize("n_nodes", [1, 2, 9, 40])
def test_every_first_part_of_the_tree_is_a_tree_of_the_likeliest(load: Any, n_nodes: int) -> None:
    model = load()
    session = TargetSession(model)
    session.prefill(tiny_prompt())
    before = session.length
    tokens, parent = likely_tree(session, 5, n_nodes)
    assert session.length == before
    assert len(tokens) == len(parent) == n_nodes
    assert (tokens[0], parent[0]) == (5, -1)
    assert all(0 <= above < node for node, above in enumerate(parent[1:], 1))
    children = list(zip(parent[1:], tokens[1:], strict=True))
    assert len(set(children)) == len(children)
    logits = session.verify(tokens, parent).logits.double()
    prob = torch.softmax(logits, dim=-1)
    path = [1.0]
    for node in range(1, n_nodes):
        path.append(path[parent[node]] * float(prob[parent[node], tokens[node]]))
    assert all(later <= sooner * (1 + 1e-5) for sooner, later in pairwise(path))
    if n_nodes == 9:
        # The root's likeliest children are all there.
        best = torch.topk(prob[0], 2).indices.tolist()
        assert set(best) <= {t for above, t in children if above == 0}


def test_logits_that_are_not_finite_are_refused(load: Any) -> None:
    model = load()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    session = TargetSession(model)
    session.prefill(tiny_prompt())
    with pytest.raises(InvalidInputError, match="the model's logits are not finite, so there is"):
        likely_tree(session, 5, 4)


# ---- fetches


@pytest.mark.parametrize("store", ["disk", "ram"])
def test_fetches_go_to_memory_of_their_own(load: Any, store: str) -> None:
    offload = offload_of(load(store=store, expert_cache=3))
    before, held = offload.store.counters(), offload.cache.resident.copy()
    timer = FetchTimer(offload, np.random.default_rng(0))
    assert timer.batch == 4  # twice the experts of a token
    timer.warm_up()
    for _ in range(3):
        timer.time()
    assert [len(seconds) for seconds in timer.seconds] == [3] * 3
    assert all(0.0 < t < np.inf for seconds in timer.seconds for t in seconds)
    moved = offload.store.counters() - before
    assert moved.fetches == 4 * (1 + 3 * 3)
    assert (offload.cache.resident == held).all()
    assert offload.cache.counters().lookups == 0


def test_an_emulated_link_is_measured_as_it_emulates(load: Any) -> None:
    offload = offload_of(load(link_bandwidth=2e7))
    timer = FetchTimer(offload, np.random.default_rng(0))
    timer.time()
    for layer, seconds in enumerate(timer.seconds):
        # Transfers queue: none is quicker than its bytes over the bandwidth.
        assert seconds[0] >= 0.999 * float(offload.store.moved_bytes[layer]) / 2e7


# ---- drafts


class Scripted:
    """A drafter that counts calls, and has nothing more to draft after ``depth`` levels."""

    def __init__(self, depth: int, max_levels: int | None = None) -> None:
        self.depth, self.max_levels = depth, max_levels
        self.calls: list[Any] = []

    def start(self, tokens: Any, features: Any) -> None:
        self.calls.append(("start", list(tokens)))

    def begin(self) -> None:
        self.calls.append("begin")
        self.level_number = 0

    def commit(self, tokens: Any, features: Any) -> None:
        self.calls.append(("commit", list(tokens)))

    def level(self, top_k: int, width: int) -> Any:
        self.calls.append((top_k, width))
        self.level_number += 1
        return object() if self.level_number <= self.depth else None


def draft_timer(drafter: Any, levels: int = 4) -> DraftTimer:
    return DraftTimer(
        drafter,
        torch.device("cpu"),
        [1, 2, 3],
        None,
        [4, 5],
        None,
        top_k=3,
        width=2,
        levels=levels,
    )


def test_levels_are_timed_behind_newly_committed_tokens() -> None:
    drafter = Scripted(depth=9)
    timer = draft_timer(drafter)
    timer.warm_up()
    assert timer.seconds == []
    drafter.calls.clear()
    timer.time()
    timer.time()
    tree = ["begin", (3, 2), (3, 2), (3, 2), (3, 2)]
    once = [("start", [1, 2, 3]), "begin", (1, 1), ("commit", [4, 5]), *tree]
    assert drafter.calls == once * 2
    assert [len(seconds) for seconds in timer.seconds] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("depth", "max_levels", "expected"), [(0, None, 1), (2, None, 3), (9, 2, 2), (9, 9, 4)]
)
def test_finding_nothing_to_draft_takes_time_as_well(
    depth: int, max_levels: int | None, expected: int
) -> None:
    timer = draft_timer(Scripted(depth, max_levels))
    timer.time()
    assert len(timer.seconds) == expected


# ---- experts


def spread(*median: float) -> Quartiles:
    return Quartiles(median, median, median)


def test_an_expert_costs_the_larger_of_transfer_and_what_it_adds() -> None:
    fetch = spread(0.002, 0.004, 0.006)
    assert _expert_time(fetch, spread(), (10, 10, 10)) == (0.004, 0.004, 0.004)
    assert _expert_time(fetch, spread(0.003), (10, 10, 10)) == (0.004, 0.004, 0.004)
    assert _expert_time(fetch, spread(0.005), (10, 10, 10)) == (0.005, 0.005, 0.005)
    # Layers of another size keep their own median, and their share of what a miss adds.
    assert _expert_time(fetch, spread(), (10, 10, 40)) == pytest.approx((0.003, 0.003, 0.006))
    assert _expert_time(fetch, spread(0.008), (10, 10, 40)) == pytest.approx((0.004, 0.004, 0.016))


@pytest.mark.parametrize(("n_elements", "batch"), [(1, 4), (1 << 25, 2), (1 << 40, 2)])
def test_fetch_batches_stay_within_memory(n_elements: int, batch: int) -> None:
    layout = SimpleNamespace(n_elements=n_elements, dtype=torch.float32)
    index = SimpleNamespace(layouts=(layout,) * 3, top_k=2, n_experts=8, n_layers=3)
    fake: Any = SimpleNamespace(index=index, device=torch.device("meta"))
    assert FetchTimer(fake, np.random.default_rng(0)).batch == batch
