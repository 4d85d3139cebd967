"""What each policy chooses: the published rules, and the exact optimum by definition."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from fake_view import FakeView, random_view
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import CostModel, DraftTree, ExpertRouting, TreeSearch, evaluate, solve
from specfit_opt.expert_union import expert_union
from specfit_opt.policies import Choice, Outcome, Policy, Ratio, SpecFitPolicy, make_policy


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


#: With these another level is expected to pay, wherever the drafter has one to give.
WORTHWHILE: dict[str, Any] = {"acceptance": (0.9,), "level_time": 0.01}


@given(seed=st.integers(0, 100_000), surplus=st.booleans(), levels=st.integers(1, 4))
def test_ratio_chooses_what_solve_chooses(seed: int, surplus: bool, levels: int) -> None:
    view = random_view(seed, rate=0.6)
    objective = "surplus" if surplus else "ratio"
    choice = Ratio(stop="none", objective=objective, levels=levels).choose(view)
    expected = solve(*drawn(view), rate=0.6 if surplus else None)
    assert view.levels <= levels
    assert choice.nodes.tolist() == expected.nodes.tolist()
    assert choice.predicted_time == pytest.approx(expected.cycle_time)
    assert choice.expected_tokens == pytest.approx(expected.expected_tokens)


@given(seed=st.integers(0, 100_000))
def test_the_exact_method_and_ratio_over_all_levels_are_one_choice(seed: int) -> None:
    at_once = make_policy("pool-exact").choose(random_view(seed))
    level_by_level = Ratio(stop="none").choose(random_view(seed))
    assert at_once.nodes.tolist() == level_by_level.nodes.tolist()
    assert at_once.predicted_time == pytest.approx(level_by_level.predicted_time)


def test_the_reference_mip_chooses_what_exact_chooses() -> None:
    pytest.importorskip("ortools")
    for seed in range(3):
        found = []
        for name in ("pool-mip", "pool-exact"):
            view = random_view(seed)
            nodes = make_policy(name).choose(view).nodes
            found.append(evaluate(*drawn(view), nodes).throughput)
        assert found[0] == pytest.approx(found[1], rel=1e-7)


@given(seed=st.integers(0, 100_000))
def test_the_waste_objective_is_maximised_over_all_closed_sets(seed: int) -> None:
    view = random_view(seed, depth=3, children=2, **WORTHWHILE)
    policy = SpecFitPolicy(guard=False)
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
    view = random_view(seed, **WORTHWHILE)
    choice = SpecFitPolicy(guard=False).choose(view)
    full = evaluate(*drawn(view), choice.nodes)
    assert choice.predicted_time == pytest.approx(full.cycle_time)
    assert choice.expected_tokens == pytest.approx(full.expected_tokens)


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


def test_ecospec_adds_four_nodes_from_three_levels_of_two() -> None:
    levels = [[(0, 0.6), (0, 0.3), (0, 0.05)], *LEVELS[1:]]
    view = FakeView(levels)
    choice = make_policy("ecospec").choose(view)
    assert view.levels == 3
    assert view.depth.tolist().count(1) == 2  # two children, however many there are
    assert len(choice.nodes) == 5


def test_s2moe_grows_while_a_node_pays_for_its_experts() -> None:
    cost = CostModel(0.0, np.concatenate([[0.0], 1.0 + 0.02 * np.arange(1, 200)]), np.full(2, 0.1))
    view = FakeView(LEVELS, cost_model=cost, level_time=0.04)
    policy = make_policy("s2moe")
    choice = policy.choose(view)
    # Every node of the tree so far, in the order of the rule's own definition.
    used = [set(zip(*np.nonzero(expert_union(e[None], 6)), strict=True)) for e in view.experts()]
    step, chosen = 1.02 + 0.1 * len(used[0]), {0}
    while True:
        active = set().union(*(used[v] for v in chosen))
        pays = [
            v
            for v, above in enumerate(view.parent.tolist())
            if v not in chosen
            and above in chosen
            and view.path_prob[v] * step > 0.01 + 0.1 * len(used[v] - active)
        ]
        if not pays:
            break
        chosen.add(pays[0])
    assert choice.nodes.tolist() == sorted(chosen)
    assert 1 < len(chosen) < len(view.parent)
    # Nothing of the last level was taken, or there was no more to draft.
    assert view.levels == len(LEVELS) or not np.isin(view.frontier, choice.nodes).any()


def test_s2moe_learns_what_an_expert_takes() -> None:
    policy = make_policy("s2moe")
    first = FakeView(LEVELS)
    choice = policy.choose(first)
    experts = first.all_experts[choice.nodes]
    told = Outcome(choice, first.levels, np.zeros(1, np.int64), 1, experts, np.zeros(2), 1.0, 0.0)
    policy.observe(told)
    # Waits are over: what has any chance pays, and the drafting alone is asked.
    view = FakeView(LEVELS)
    assert len(policy.choose(view).nodes) == len(view.parent)
    assert len(policy.fresh().choose(FakeView(LEVELS)).nodes) == len(choice.nodes)


def draws(seed: int) -> FakeView:
    """Return a view whose prices are drawn, too: of experts, of a level, and the rate so far."""
    rng = np.random.default_rng(1000 + seed)
    cost = CostModel(1.0, 0.02, rng.random(2) * 0.4)
    rate = None if rng.random() < 0.3 else float(rng.uniform(0.2, 1.2))
    level_time = float(rng.uniform(0.0, 1.0))
    return random_view(seed, depth=4, cost_model=cost, level_time=level_time, rate=rate)


def values_by_level(seed: int, rate: float | None) -> list[float]:
    """Return the best value with 0, 1, ... levels drafted, each solved by itself."""
    view = draws(seed)
    values = [solve(*drawn(view), rate=rate).objective]
    while view.grow(30, 300):
        values.append(solve(*drawn(view), rate=rate).objective)
    return values


def everything(stop: str, objective: str = "ratio") -> Ratio:
    """Return the policy over a tree of which nothing is cut off."""
    return Ratio(stop=stop, objective=objective, top_k=30, width=300)


class TestStopping:
    @pytest.mark.parametrize(
        "policy", [Ratio(stop="expected"), Ratio(stop="certified"), SpecFitPolicy(guard=False)]
    )
    def test_drafting_that_cannot_pay_does_not_begin(self, policy: Policy) -> None:
        view = FakeView(LEVELS, level_time=3.0, acceptance=(1.0,))
        assert policy.choose(view).nodes.tolist() == [0]
        assert view.calls["grow"] == 0

    def test_drafting_that_is_not_expected_to_pay_does_not_begin(self) -> None:
        for policy in (Ratio(stop="expected"), SpecFitPolicy(guard=False)):
            hopeless = FakeView(LEVELS, level_time=0.05, acceptance=(0.01,))
            assert policy.choose(hopeless).nodes.tolist() == [0]
            assert hopeless.calls["grow"] == 0
        # The certified rule goes on: for all it knows the children are sure.
        view = FakeView(LEVELS, level_time=0.05, acceptance=(0.01,))
        Ratio(stop="certified").choose(view)
        assert view.calls["grow"] > 0

    def test_naive_stops_after_a_level_that_lowered_the_value(self) -> None:
        view = FakeView([[(0, 0.001)], [(1, 1.0)], [(2, 1.0)]], level_time=0.05)
        choice = Ratio().choose(view)
        assert view.levels == 1
        assert choice.nodes.tolist() == [0]

    def test_naive_stops_after_the_first_level_that_lowers_it(self) -> None:
        stopped = 0
        for seed in range(120):
            values = values_by_level(seed, None)
            falls = [d for d in range(1, len(values)) if values[d] < values[d - 1]]
            view = draws(seed)
            everything("naive").choose(view)
            assert view.levels == (falls[0] if falls else len(values) - 1)
            stopped += view.levels < len(values) - 1
        assert stopped > 10

    @pytest.mark.parametrize(("level_time", "levels"), [(0.0, 3), (0.1, 1)])
    def test_naive_goes_on_while_the_value_merely_stands_still(
        self, level_time: float, levels: int
    ) -> None:
        view = FakeView(
            [[(0, 0.9)], [(1, 1.0)], [(2, 1.0)]],
            cost_model=CostModel(1.0, 0.0, np.full(2, 100.0)),
            level_time=level_time,
        )
        view.all_experts[0], view.all_experts[1:] = [0, 1], [2, 3]
        Ratio().choose(view)
        assert view.levels == levels

    @pytest.mark.parametrize("objective", ["ratio", "surplus"])
    def test_certified_never_gives_up_what_drafting_on_would_have_won(
        self, objective: str
    ) -> None:
        stopped = 0
        for seed in range(120):
            view = draws(seed)
            values = values_by_level(seed, view.rate if objective == "surplus" else None)
            everything("certified", objective).choose(view)
            stopped += view.levels < len(values) - 1
            value = values[view.levels]
            assert value >= max(values[view.levels :]) - 1e-9 * abs(value)
        assert stopped > 10

    def test_certified_looks_past_the_next_level(self) -> None:
        # The first token's experts are so dear that only a run of several pays for them.
        view = FakeView(
            [[(0, 0.9)], [(1, 1.0)], [(2, 1.0)], [(3, 1.0)]],
            n_layers=1,
            n_experts=2,
            top_k=1,
            cost_model=CostModel(1.0, 0.0, np.full(1, 2.5)),
            resident=np.array([[True, False]]),
            level_time=0.1,
            acceptance=(0.9,),
        )
        view.all_experts[0], view.all_experts[1:] = 0, 1
        choice = Ratio(stop="certified").choose(view)
        assert view.levels == 4
        assert choice.nodes.tolist() == [0, 1, 2, 3, 4]
        # The values of one to three levels are below that of the root.
        assert [(1 + 0.9 * d) / (3.5 + 0.1 * d) > 1.0 for d in range(1, 5)] == [False] * 3 + [True]

    def test_expected_never_drafts_more_than_certified(self) -> None:
        fewer = 0
        for seed in range(120):
            own, most = draws(seed), draws(seed)
            everything("expected").choose(own)
            everything("certified").choose(most)
            assert own.levels <= most.levels
            fewer += own.levels < most.levels
        assert fewer > 5

    def test_none_drafts_all_levels(self) -> None:
        view = FakeView([[(0, 0.001)], [(1, 1.0)], [(2, 1.0)]], level_time=0.05)
        Ratio(stop="none").choose(view)
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
        choice = Ratio(stop="gain-share").choose(view)
        assert view.levels == levels
        assert choice.nodes.tolist() == list(range(levels + 1))

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
        Ratio(stop="gain-share").choose(view)
        assert view.levels == 2

    def test_gain_share_counts_no_gain_behind_a_node_that_is_not_verified(self) -> None:
        view = FakeView(
            [[(0, 0.6)], [(1, 0.9)]],
            cost_model=CostModel(1.0, 0.0, np.full(2, 100.0)),
            level_time=1e-6,
            acceptance=(1.0,),
        )
        view.all_experts[0], view.all_experts[1:] = [0, 1], [2, 3]
        choice = Ratio(stop="gain-share").choose(view)
        assert choice.nodes.tolist() == [0]
        assert view.levels == 1

    @pytest.mark.parametrize(
        "policy", [Ratio(stop="none", levels=2), SpecFitPolicy(levels=2, guard=False)]
    )
    def test_a_limit_of_levels_is_kept(self, policy: Policy) -> None:
        view = FakeView(LEVELS, acceptance=(1.0,), level_time=1e-6)
        policy.choose(view)
        assert view.levels == 2

    def test_without_a_rate_the_surplus_is_the_ratio(self) -> None:
        for seed in range(20):
            choices = [
                Ratio(stop="none", objective=objective).choose(random_view(seed, rate=None))
                for objective in ("ratio", "surplus")
            ]
            assert choices[0].nodes.tolist() == choices[1].nodes.tolist()

    @given(seed=st.integers(0, 100_000))
    def test_looking_one_level_ahead_decides_as_all_levels_would(self, seed: int) -> None:
        # The policy asks for the cheaper advice; the theory says that it is the same.
        view = random_view(seed, acceptance=(0.5, 0.6, 0.4), level_time=0.1)
        stopped = Ratio(stop="expected", top_k=4, width=4).choose(view)
        again = random_view(seed, acceptance=(0.5, 0.6, 0.4), level_time=0.1)
        assert _with_full_advice(again).nodes.tolist() == stopped.nodes.tolist()
        assert again.levels == view.levels


def _with_full_advice(view: FakeView) -> Choice:
    """Grow as the policy does, but ask the advice of all levels that are left."""
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
