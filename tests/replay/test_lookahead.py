"""The clairvoyant policy of benchmarks, on traces small enough to reckon by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import benchmark_script
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.control.acceptance import AcceptanceCalibrator
from specfit_opt.data import example_trace
from specfit_opt.errors import InvalidInputError
from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace
from specfit_opt.policies import POLICIES, Choice, DraftView, SpecFitPolicy, make_policy
from specfit_opt.replay import RecordedDecode, ReplayedCycle, SimulatedMachine, replay

with pytest.MonkeyPatch.context() as patch:
    Lookahead: Any = benchmark_script("lookahead_policy", patch).Lookahead


#: Drafted with this probability, in the trace below.
CHANCE = 0.3


def text(roots: list[int], draft: int) -> Trace:
    """One layer, one expert per token. The first position drafts one child, wrongly; no other."""
    n = len(roots)
    return Trace(
        cycle_start=[0, *range(2, n + 2)],
        prompt=np.zeros(n, dtype=np.int32),
        position=np.arange(n),
        parent=[-1, 0, *[-1] * (n - 1)],
        token=np.arange(n + 1),
        path_prob=np.array([1.0, CHANCE, *[1.0] * (n - 1)], dtype=np.float32),
        depth=[0, 1, *[0] * (n - 1)],
        accepted=[True, False, *[True] * (n - 1)],
        experts=np.array([roots[0], draft, *roots[1:]]).reshape(-1, 1, 1),
        n_experts=8,
        name="by hand",
    )


class Watched(Lookahead):  # type: ignore[misc]
    """Keeps what it saw; sees twice what it may not change."""

    def __init__(self, passes: int = 2, tail: int = 0) -> None:
        super().__init__(passes, tail=tail, cache_policy="lru")
        self.seen: list[list[Any]] = []
        self.choices: list[Choice] = []
        self.depths: list[tuple[int, int]] = []

    def fresh(self) -> Watched:
        return self

    def choose(self, view: DraftView) -> Choice:
        resident = np.array(view.resident)
        first, second = self.prospects(view), self.prospects(view)
        assert [p.value for p in first] == [p.value for p in second]
        assert view.levels == 0
        assert np.array_equal(view.resident, resident)
        choice = super().choose(view)
        self.seen.append(first)
        self.choices.append(choice)
        self.depths.append((view.levels, int(view.depth[choice.nodes].max())))
        return choice


def decode(trace: Trace, policy: Any) -> list[ReplayedCycle]:
    """A pass takes a second, so does a load; the cache holds half of the experts."""
    machine = SimulatedMachine(
        cost_model=CostModel(1.0, 0.0, np.ones(1)),
        draft_time=0.05,
        slots=4,
    )
    decoder = RecordedDecode(trace, policy, machine, warmup=0)
    # Takes the drafter at its word.
    decoder.calibrator = AcceptanceCalibrator(cold_start=(1.0, 0.0))
    return decoder.text(0, trace.n_cycles)


def decode_example(policy: Any) -> list[ReplayedCycle]:
    """Decode the beginning of a recorded text."""
    trace = example_trace()
    machine = SimulatedMachine(
        cost_model=CostModel(0.025, 5e-5, np.full(trace.n_layers, 2.5e-3)),
        draft_time=1.2e-3,
        slots=16,
        cache_policy="lru",
    )
    return RecordedDecode(trace, policy, machine).text(0, 36)


def myopic() -> SpecFitPolicy:
    return SpecFitPolicy(guard=False)


def sizes(cycles: list[ReplayedCycle]) -> list[int]:
    return [len(cycle.choice.nodes) for cycle in cycles]


def test_takes_a_load_that_only_the_second_pass_repays() -> None:
    trace = text([0, 1, 0, 0], draft=1)
    policy = Watched()
    assert sizes(decode(trace, policy))[0] == 2
    assert sizes(decode(trace, myopic()))[0] == 1
    assert sizes(decode(trace, Watched(passes=1)))[0] == 1
    alone, both = policy.seen[0]
    # The running rate is that of the best single pass, one token a second beside its loads.
    assert (alone.nodes.tolist(), both.nodes.tolist()) == ([0], [0, 1])
    assert (alone.first, alone.later) == (0.0, 0.0)
    # Loads of both experts, of which the text needs the first, and the second if it goes on that
    # far; then, if it does not, the next position finds the expert that it needs.
    assert both.first == pytest.approx((1 + CHANCE) - (1.05 + 2 - (1 + CHANCE * 1)))
    assert both.later == pytest.approx((1 - CHANCE) * 1.0)


def test_leaves_a_load_that_nobody_repays() -> None:
    policy = Watched()
    assert sizes(decode(text([0, 2, 0, 0], draft=1), policy))[0] == 1
    assert policy.seen[0][1].later == pytest.approx(0.0)


@pytest.mark.parametrize(("tail", "taken"), [(0, 1), (3, 1), (4, 2), (20, 2)])
def test_a_tail_sees_what_is_repaid_later(tail: int, taken: int) -> None:
    # The fourth token is the first to use what the draft loads.
    policy = Watched(tail=tail)
    assert sizes(decode(text([0, 0, 0, 1, 0], draft=1), policy))[0] == taken


def test_a_tail_asks_whether_the_load_is_still_there() -> None:
    # Four other experts come first, and there are four slots.
    policy = Watched(tail=20)
    cycles = decode(text([0, 2, 3, 4, 5, 1, 0], draft=1), policy)
    assert sizes(cycles)[0] == 1


def test_takes_the_best_prospect_and_drafts_no_more_than_it_needs() -> None:
    policy = Watched(tail=12)
    cycles = decode_example(policy)
    assert sum(cycle.committed for cycle in cycles) >= 24
    for prospects, choice in zip(policy.seen, policy.choices, strict=True):
        assert any(p.nodes.tolist() == [0] for p in prospects)
        (taken,) = (p for p in prospects if np.array_equal(p.nodes, choice.nodes))
        assert taken.value == max(p.value for p in prospects)
    assert all(levels >= deepest for levels, deepest in policy.depths)
    assert all(levels == 0 for levels, _ in policy.depths[:12])  # they stand for the prompt
    assert len({levels for levels, _ in policy.depths}) > 2


def test_values_are_what_loops_give() -> None:
    found: list[tuple[float, float]] = []

    class Compared(Watched):
        def choose(self, view: DraftView) -> Choice:
            if len(self.seen) > 12:
                prospects = self.prospects(view)
                found.extend((p.first, first_by_hand(self, view, p)) for p in prospects)
            return super().choose(view)

    decode_example(Compared())
    assert len(found) > 20
    for ours, theirs in found:
        assert ours == pytest.approx(theirs, abs=1e-9)


def first_by_hand(policy: Any, view: DraftView, prospect: Any) -> float:
    here = view.ahead(0)  # type: ignore[attr-defined]
    while here.levels < prospect.levels:
        here.grow(4, 4)
    rate = policy._tokens / policy._seconds  # as it has followed it
    nodes = prospect.nodes.tolist()
    cost, n_experts = view.cost_model, view.resident.shape[1]
    time = cost.expert_table(*view.resident.shape)

    def load(used: NDArray[np.bool_]) -> float:
        return float(time[used & ~view.resident].sum())

    seconds = cost.fixed_time + len(nodes) * cost.node_time + here.draft_time
    seconds += load(expert_union(here.true_experts[nodes], n_experts))
    beside = 0.0
    for v in nodes:  # the accepted path ends there
        ends = here.path_prob[v] - math.fsum(
            here.path_prob[c] for c in nodes if here.parent[c] == v
        )
        tokens = int(here.depth[v]) + 1
        roots = [view.ahead(i).true_experts[0] for i in range(tokens)]  # type: ignore[attr-defined]
        beside += ends * load(expert_union(np.stack(roots), n_experts))
    expected = float(here.path_prob[nodes].sum())
    return float(expected - rate * (seconds - beside))


def test_is_of_no_use_outside_replays() -> None:
    assert "lookahead" not in POLICIES
    with pytest.raises(InvalidInputError, match="unknown"):
        make_policy("lookahead")

    class Live:
        resident = np.zeros((1, 8), dtype=np.bool_)

    with pytest.raises(InvalidInputError, match="only a recording shows"):
        Lookahead().choose(Live())  # type: ignore[arg-type]


def test_bad_arguments_say_what_is_wrong() -> None:
    with pytest.raises(InvalidInputError, match="passes must be 1 or 2"):
        Lookahead(3)
    with pytest.raises(InvalidInputError, match="tail"):
        Lookahead(tail=-1)
    with pytest.raises(InvalidInputError, match="cache policy"):
        Lookahead(cache_policy="oldest")
    with pytest.raises(InvalidInputError, match="not what lfu would hold"):
        decode_example(Lookahead(cache_policy="lfu"))


def test_serves_as_a_policy_of_replay() -> None:
    trace = text([0, 1, 0, 0], draft=1)
    policies = [Lookahead(), Lookahead(1, tail=7)]
    results = replay(trace, policies=policies, cache=4, expert_bytes=24_800_000_000, warmup=0)
    assert [(r.policy, r.tokens, r.misses) for r in results] == [
        ("lookahead-2", 4, 2),
        ("lookahead-1-tail-7", 4, 2),
    ]
