"""What each policy chooses: the published rules, and the exact optimum by definition."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from fake_view import FakeView, random_view
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import CostModel, DraftTree, ExpertRouting, evaluate, solve
from specfit_opt.control.waste_prices import WastePrices
from specfit_opt.policies import Choice, SpecFitPolicy, make_policy


def drawn(view: FakeView) -> tuple[DraftTree, ExpertRouting, CostModel]:
    """Return the problem that the view has grown to, drafting paid."""
    cost = view.cost_model
    return (
        DraftTree(view.parent, view.path_prob),
        ExpertRouting(view.experts(), view.resident.shape[1], np.array(view.resident)),
        cost.with_fixed_time(cost.fixed_time + view.draft_time),
    )


def closed_sets(parent: np.ndarray) -> list[list[int]]:
    others = range(1, len(parent))
    subsets = chain.from_iterable(combinations(others, size) for size in range(len(parent)))
    return [
        [0, *subset]
        for subset in subsets
        if all(parent[v] == 0 or parent[v] in subset for v in subset)
    ]


def met_probability(view: FakeView) -> np.ndarray:
    """Return, by going through where the accepted path may end, how likely it uses each expert."""
    parent, path_prob, experts = view.parent, view.path_prob, view.experts()
    met = np.zeros(view.resident.shape)
    for end in range(len(parent)):
        ends_here = path_prob[end] - path_prob[parent == end].sum()
        used = np.zeros(met.shape, dtype=np.bool_)
        node = end
        while node >= 0:
            used[np.arange(len(used))[:, None], experts[node]] = True
            node = int(parent[node])
        met += ends_here * used
    return met


def waste_of(view: FakeView, nodes: list[int], met: np.ndarray) -> float:
    """Return the expected seconds of loads that no committed token uses."""
    used = np.zeros(met.shape, dtype=np.bool_)
    for node in nodes:
        used[np.arange(len(used))[:, None], view.experts()[node]] = True
    time = view.cost_model.expert_table(*met.shape)
    return float((time * (1.0 - met))[used & ~view.resident].sum())


@given(seed=st.integers(0, 100_000), surplus=st.booleans())
def test_specfit_chooses_what_solve_chooses(seed: int, surplus: bool) -> None:
    view = random_view(seed, rate=0.6)
    objective = "surplus" if surplus else "ratio"
    policy = SpecFitPolicy("none", objective=objective, guard=False)
    choice = policy.choose(view)
    expected = solve(*drawn(view), rate=0.6 if surplus else None)
    assert choice.objective == pytest.approx(expected.objective, rel=1e-9, abs=1e-9)
    assert choice.nodes.tolist() == expected.nodes.tolist()
    assert choice.predicted_time == pytest.approx(expected.cycle_time)
    assert choice.expected_tokens == pytest.approx(expected.expected_tokens)
    assert choice.predicted_misses is not None
    assert choice.predicted_misses.tolist() == expected.experts_loaded.tolist()


@given(seed=st.integers(0, 100_000))
def test_the_waste_objective_is_maximised_over_all_closed_sets(seed: int) -> None:
    view = random_view(seed, depth=3, children=2)
    policy = SpecFitPolicy("none", guard=False)
    # The charge per rejected node, before anything was learned: a fifth of the root's loads.
    charge = 0.2 * waste_of(view, [0], np.zeros((2, 6)))
    choice = policy.choose(view)
    if len(view.parent) > 9:
        return
    met = met_probability(view)
    _, _, cost = drawn(view)

    def value(nodes: list[int]) -> float:
        tokens = float(view.path_prob[nodes].sum())
        rejected = charge * (len(nodes) - tokens) if view.levels else 0.0
        compute = cost.fixed_time + cost.node_table(len(nodes))[-1]
        return tokens / (compute + waste_of(view, nodes, met) + rejected)

    best = max(map(value, closed_sets(view.parent)))
    assert value(choice.nodes.tolist()) == pytest.approx(best, rel=1e-9)


@given(seed=st.integers(0, 100_000))
def test_predictions_of_the_waste_objective_are_at_full_prices(seed: int) -> None:
    view = random_view(seed)
    choice = SpecFitPolicy("none", guard=False).choose(view)
    full = evaluate(*drawn(view), choice.nodes)
    assert choice.predicted_time == pytest.approx(full.cycle_time)
    assert choice.predicted_misses is not None
    assert choice.predicted_misses.tolist() == full.experts_loaded.tolist()


@given(seed=st.integers(0, 100_000))
def test_waste_prices_follow_from_where_the_path_may_end(seed: int) -> None:
    view = random_view(seed)
    time = np.random.default_rng(seed).random((2, 6))
    prices = WastePrices(time)
    first = 0
    while True:
        new = slice(first, len(view.parent))
        prices.extend(view.parent[new], view.path_prob[new], view.experts(first))
        np.testing.assert_allclose(
            prices.table(), time * (1.0 - met_probability(view)), atol=1e-12
        )
        first = len(view.parent)
        if not view.grow(3, 30):
            break


def test_waste_prices_take_padding_for_nobody() -> None:
    prices = WastePrices(np.ones((2, 3)))
    prices.extend(np.array([-1]), np.ones(1), np.array([[[-1, 2], [0, -1]]], dtype=np.int32))
    assert prices.table().tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    prices.extend(np.array([0]), np.array([0.5]), np.array([[[2, 1], [-1, -1]]], dtype=np.int32))
    assert prices.table().tolist() == [[1.0, 0.5, 0.0], [0.0, 1.0, 1.0]]


LEVELS = [
    [(0, 0.6), (0, 0.3)],
    [(1, 0.5), (1, 0.4), (2, 0.9)],
    [(3, 0.9), (4, 0.1), (5, 0.8)],
]


def test_chain_drafts_one_child_at_a_time() -> None:
    view = FakeView(LEVELS)
    choice = make_policy("chain-2").choose(view)
    assert choice.nodes.tolist() == [0, 1, 2]
    assert view.levels == 2
    assert view.path_prob.tolist() == [1.0, 0.6, 0.3]


def test_eagle_takes_the_likeliest_nodes_of_all_levels() -> None:
    view = FakeView(LEVELS)
    choice = make_policy("eagle-4").choose(view)
    assert view.levels == 3
    # 0.3 is node 2 and node 3: the earlier one comes first among equals.
    assert choice.nodes.tolist() == [0, 1, 2, 3]
    assert make_policy("eagle").choose(FakeView(LEVELS)).nodes.tolist() == list(range(9))


def test_eagle_keeps_parents_of_chosen_nodes_however_close_the_scores() -> None:
    # Children that are as likely as their parents, which a rounded score would put first.
    levels = [[(0, 0.5), (0, 0.5)], [(1, 1.0), (2, 1.0)], [(3, 1.0), (4, 1.0)]]
    for size in range(1, 8):
        choice = make_policy(f"eagle-{size}").choose(FakeView(levels))
        assert choice.nodes.tolist() == sorted(choice.nodes.tolist())
        parent = FakeView(levels)
        while parent.grow(10, 10):
            pass
        assert np.isin(parent.parent[choice.nodes[1:]], choice.nodes).all()


def test_evict_weighs_tokens_against_the_time_of_the_size() -> None:
    # Each node costs 0.3 of a pass: nodes below that are not worth it at a ratio near 1.
    cost = CostModel(0.0, np.concatenate([[0.0], 0.7 + 0.3 * np.arange(1, 30)]), np.full(2, 5.0))
    view = FakeView(LEVELS, cost_model=cost, level_time=0.0)
    choice = make_policy("evict").choose(view)
    prefix = np.sort(view.path_prob)[::-1]
    value = np.cumsum(prefix) / (0.7 + 0.3 * np.arange(1, len(prefix) + 1))
    assert len(choice.nodes) == int(value.argmax()) + 1
    assert view.calls["experts"] == 0  # the published rule is blind to experts


def test_evict_with_estimated_loads_takes_fewer_nodes_where_loading_is_dear() -> None:
    cost = CostModel(0.0, np.concatenate([[0.0], 1.0 + 0.01 * np.arange(1, 30)]), np.full(2, 1.0))
    blind = make_policy("evict").choose(FakeView(LEVELS, n_experts=60, cost_model=cost))
    seeing = make_policy("evict", pass_time="estimated").choose(
        FakeView(LEVELS, n_experts=60, cost_model=cost)
    )
    assert len(seeing.nodes) < len(blind.nodes)


def test_ecospec_adds_four_nodes_from_three_levels_of_two() -> None:
    levels = [[(0, 0.6), (0, 0.3), (0, 0.05)], *LEVELS[1:]]
    view = FakeView(levels)
    choice = make_policy("ecospec").choose(view)
    assert view.levels == 3
    assert view.depth.tolist().count(1) == 2  # two children, however many there are
    assert len(choice.nodes) == 5


class TestStopping:
    def test_drafting_that_cannot_pay_does_not_begin(self) -> None:
        for stop in ("expected", "certified"):
            view = FakeView(LEVELS, level_time=3.0, acceptance=(1.0,))
            choice = SpecFitPolicy(stop, guard=False).choose(view)
            assert choice.nodes.tolist() == [0]
            assert view.calls["grow"] == 0
            assert choice.reason

    def test_drafting_that_is_not_expected_to_pay_does_not_begin(self) -> None:
        hopeless = FakeView(LEVELS, level_time=0.05, acceptance=(0.01,))
        assert SpecFitPolicy(guard=False).choose(hopeless).nodes.tolist() == [0]
        assert hopeless.calls["grow"] == 0
        # The certified rule goes on: for all it knows the children are sure.
        assert SpecFitPolicy("certified", guard=False).choose(FakeView(LEVELS)) is not None
        view = FakeView(LEVELS, level_time=0.05, acceptance=(0.01,))
        SpecFitPolicy("certified", guard=False).choose(view)
        assert view.calls["grow"] > 0

    def test_naive_stops_after_a_level_that_lowered_the_value(self) -> None:
        view = FakeView([[(0, 0.001)], [(1, 1.0)], [(2, 1.0)]], level_time=0.05)
        choice = SpecFitPolicy("naive", objective="ratio", guard=False).choose(view)
        assert view.levels == 1
        assert choice.nodes.tolist() == [0]

    def test_none_drafts_all_levels(self) -> None:
        view = FakeView([[(0, 0.001)], [(1, 1.0)], [(2, 1.0)]], level_time=0.05)
        SpecFitPolicy("none", guard=False).choose(view)
        assert view.levels == 3

    @pytest.mark.parametrize(("second", "levels"), [(0.9, 2), (0.88, 1)])
    def test_gain_share_by_hand(self, second: float, levels: int) -> None:
        # Level 1: a gain of 0.6 tokens; its share of 1 token in 1 s is 0.5. Level 2: 0.6 x second,
        # the share of 1.6 tokens in 1.5 s is 0.533. Level 3: 0.3, of 1.9 tokens in 2 s 0.475.
        view = FakeView(
            [[(0, 0.6)], [(1, 0.5)], [(2, 1.0)]],
            cost_model=CostModel(1.0, 0.0, np.full(2, 0.1)),
            resident=np.ones((2, 6), dtype=np.bool_),
            level_time=0.5,
            acceptance=(0.0, 0.6, second, 1.0),
        )
        choice = SpecFitPolicy("gain-share", guard=False).choose(view)
        assert view.levels == levels
        assert choice.nodes.tolist() == list(range(levels + 1))
        assert "its share is" in choice.reason

    def test_gain_share_takes_the_loads_of_the_pass_into_its_time(self) -> None:
        # As above, but the pass also loads four experts of 0.1 s: 1.6 tokens in 1.9 s, 0.421 for
        # level 2 (0.528 gained); then 1.9 tokens in 2.4 s, 0.396 for level 3 (0.3 gained).
        view = FakeView(
            [[(0, 0.6)], [(1, 0.5)], [(2, 1.0)]],
            cost_model=CostModel(1.0, 0.0, np.full(2, 0.1)),
            level_time=0.5,
            acceptance=(0.0, 0.6, 0.88, 1.0),
        )
        view.all_experts[:] = view.all_experts[0]
        SpecFitPolicy("gain-share", guard=False).choose(view)
        assert view.levels == 2

    def test_gain_share_counts_no_gain_behind_a_node_that_is_not_verified(self) -> None:
        view = FakeView(
            [[(0, 0.6)], [(1, 0.9)]],
            cost_model=CostModel(1.0, 0.0, np.full(2, 100.0)),
            level_time=1e-6,
            acceptance=(1.0,),
        )
        view.all_experts[0], view.all_experts[1:] = [0, 1], [2, 3]
        choice = SpecFitPolicy("gain-share", objective="ratio", guard=False).choose(view)
        assert choice.nodes.tolist() == [0]
        assert view.levels == 1

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_a_fixed_depth_is_drafted_whatever_it_brings(self, depth: int) -> None:
        view = FakeView([[(0, 0.001)], [(1, 0.1)], [(2, 0.1)], [(3, 0.1)]], level_time=5.0)
        make_policy(f"specfit-depth-{depth}", guard=False).choose(view)
        assert view.levels == depth

    @given(seed=st.integers(0, 100_000), depth=st.integers(1, 3))
    def test_a_fixed_depth_chooses_exactly(self, seed: int, depth: int) -> None:
        view = random_view(seed)
        policy = make_policy(f"specfit-depth-{depth}", objective="ratio", guard=False)
        choice = policy.choose(view)
        expected = solve(*drawn(view))
        assert choice.objective == pytest.approx(expected.objective, rel=1e-9, abs=1e-9)
        assert choice.nodes.tolist() == expected.nodes.tolist()

    def test_a_limit_of_levels_is_kept(self) -> None:
        view = FakeView(LEVELS, acceptance=(1.0,), level_time=1e-6)
        SpecFitPolicy("none", levels=2, guard=False).choose(view)
        assert view.levels == 2

    @given(seed=st.integers(0, 100_000))
    def test_looking_one_level_ahead_decides_as_all_levels_would(self, seed: int) -> None:
        # The policy asks for the cheaper advice; the theory says that it is the same.
        view = random_view(seed, acceptance=(0.5, 0.6, 0.4), level_time=0.1)
        stopped = SpecFitPolicy(objective="ratio", guard=False).choose(view)
        again = random_view(seed, acceptance=(0.5, 0.6, 0.4), level_time=0.1)
        assert _with_full_advice(again).nodes.tolist() == stopped.nodes.tolist()
        assert again.levels == view.levels


def _with_full_advice(view: FakeView) -> Choice:
    """Grow as the policy does, but ask the advice of all levels that are left."""
    from specfit_opt import TreeSearch

    search = TreeSearch(view.cost_model, 2, 6, np.array(view.resident))
    solution = search.extend([-1], [1.0], view.experts())
    while view.levels < 6:
        advice = search.advise(
            view.level_time, view.acceptance, levels=6 - view.levels, frontier=view.frontier
        )
        first = len(view.parent)
        if not advice.go or not view.grow(4, 4):
            break
        solution = search.extend(
            view.parent[first:], view.path_prob[first:], view.experts(first), view.level_time
        )
    return Choice(solution.nodes)
