"""Every registered policy keeps the contract of a choice, on trees of any shape."""

from __future__ import annotations

import numpy as np
import pytest
from fake_view import FakeView, random_view
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import METHODS, CostModel
from specfit_opt.policies import POLICIES, Choice, Outcome, Policy, make_policy
from specfit_opt.policies.ratio import STOP_RULES

#: mip takes seconds a tree, brute has a limit of nodes, and the bare root is ar.
SLOW = {"mip", "brute", "root"}
NAMES = [
    *[kind.default_name for kind in POLICIES.values() if kind.name != "pool-METHOD"],
    *[f"pool-{name}" for name in METHODS if name not in SLOW],
    *[f"ratio-{stop}" for stop in STOP_RULES],
    "ratio-surplus",
]


def unguarded(name: str) -> Policy:
    """Return the policy, free to speculate from its first cycle on."""
    if name == "specfit":
        return make_policy(name, guard=False)
    return make_policy(name)


def check(choice: Choice, view: FakeView) -> None:
    nodes, parent = choice.nodes, view.parent
    assert nodes.dtype == np.int64
    assert nodes[0] == 0
    assert (np.diff(nodes) > 0).all()
    assert nodes[-1] < len(parent)
    assert np.isin(parent[nodes[1:]], nodes).all()
    assert choice.expected_tokens == pytest.approx(view.path_prob[nodes].sum(), abs=1e-5)
    assert choice.predicted_time is None or choice.predicted_time > 0.0


def outcome(view: FakeView, choice: Choice, rng: np.random.Generator) -> Outcome:
    """Return what a target that accepts at random makes of the choice."""
    nodes, path = choice.nodes, [0]
    while True:
        children = [v for v in nodes.tolist() if view.parent[v] == path[-1]]
        if not children or rng.random() < 0.4:
            break
        path.append(int(rng.choice(children)))
    experts = view.all_experts[nodes]
    missed = np.array(
        [
            np.count_nonzero(~view.resident[layer, np.unique(experts[:, layer])])
            for layer in range(experts.shape[1])
        ]
    )
    waited = 0.1 * float(missed.sum())
    return Outcome(
        choice=choice,
        levels=view.levels,
        accepted=np.array(path),
        committed=len(path),
        experts=experts,
        misses=missed,
        seconds=1.0 + 0.02 * len(nodes) + waited + view.draft_time,
        transfer_seconds=waited,
    )


@pytest.mark.parametrize("name", NAMES)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=4))
def test_a_choice_is_a_closed_set_with_the_root(name: str, seeds: list[int]) -> None:
    policy = unguarded(name)
    policy.start()
    for seed in seeds:
        view = random_view(seed)
        choice = policy.choose(view)
        check(choice, view)
        policy.observe(outcome(view, choice, np.random.default_rng(seed)))


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_without_levels_leaves_the_root(name: str) -> None:
    view = FakeView()
    choice = unguarded(name).choose(view)
    assert choice.nodes.tolist() == [0]
    assert view.levels == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_may_end_early(name: str) -> None:
    view = FakeView([[(0, 0.9)], [(1, 0.9)]], resident=np.ones((2, 6), dtype=np.bool_))
    choice = unguarded(name).choose(view)
    check(choice, view)
    if name != "ar":
        assert choice.nodes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drafted_deeper_than_the_text_may_go(name: str) -> None:
    view = FakeView([[(0, 0.9)], [(1, 0.9)]], max_levels=1, acceptance=(1.0,))
    assert unguarded(name).choose(view).nodes.tolist() in ([0], [0, 1])
    assert view.levels <= 1
    last = FakeView([[(0, 0.9)], [(1, 0.9)]], max_levels=0, acceptance=(1.0,))
    assert unguarded(name).choose(last).nodes.tolist() == [0]
    assert last.levels == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_says_so_asks_no_prices(name: str) -> None:
    view = FakeView([[(0, 0.6), (0, 0.3)], [(1, 0.9)]])
    policy = unguarded(name)
    policy.choose(view)
    if not policy.priced:
        assert view.calls["prices"] == 0
    if not policy.predicts:
        assert view.calls["experts"] == 0
    if not policy.drafts:
        assert view.calls == {"grow": 0, "experts": 0, "prices": 0}


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_policy_has_the_same_name_and_no_memory(name: str) -> None:
    policy = unguarded(name)
    first = policy.choose(random_view(3)).nodes.tolist()
    rng = np.random.default_rng(0)
    for seed in range(20):
        view = random_view(seed)
        policy.observe(outcome(view, policy.choose(view), rng))
    fresh = policy.fresh()
    assert fresh.name == policy.name
    assert fresh.choose(random_view(3)).nodes.tolist() == first


@pytest.mark.parametrize("name", ["evict", "pool-exact", "ratio-none", "s2moe", "specfit"])
def test_sizes_that_were_never_measured_are_not_verified(name: str) -> None:
    table = np.concatenate([[0.0], 1.0 + 1e-4 * np.arange(1, 4)])  # up to three nodes
    view = FakeView(
        [[(0, 0.3), (0, 0.3), (0, 0.3)], [(1, 0.9), (2, 0.9)]],
        cost_model=CostModel(0.0, table, np.full(2, 1e-6)),
        level_time=1e-6,
    )
    assert len(unguarded(name).choose(view).nodes) == 3
