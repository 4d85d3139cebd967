"""What policies choose, and how they are named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from random_trace import random_trace
from specfit_opt.replay.pool import Pool

from specfit_opt.cost import CostModel
from specfit_opt.errors import InvalidInputError
from specfit_opt.files import Trace
from specfit_opt.methods import METHODS
from specfit_opt.policies import Choice, PassState, SpecfitPolicy, make_policies
from specfit_opt.replay import FIXED_POLICIES, POLICIES, default_policies, make_policy, replay
from specfit_opt.search import TreeSearch

#: Every registered policy; mip is exercised once on its own, because it is slow.
NAMES = [
    kind.name.replace("-K", "-2").replace("-N", "-5")
    for kind in POLICIES.values()
    if kind.name != "mip"
]


def _states(seed: int, n_pools: int) -> Iterator[tuple[Pool, PassState]]:
    rng = np.random.default_rng(seed)
    trace = random_trace(rng, prompts=1, positions=n_pools, max_nodes=20)
    for cycle in trace.cycles():
        resident = rng.random((trace.n_layers, trace.n_experts)) < 0.5
        cost = CostModel(0.02 * rng.random() + 1e-3, 1e-4, rng.random(trace.n_layers) * 5e-3)
        rate = None if rng.random() < 0.3 else float(rng.uniform(10.0, 200.0))
        yield Pool.of(cycle), PassState(resident, cost, float(6e-3 * rng.random()), rate)


@pytest.mark.parametrize("name", NAMES)
def test_choices_are_closed_and_within_the_drafted_levels(name: str) -> None:
    policy = make_policy(name).fresh()
    for pool, state in _states(3, 25):
        choice = policy.choose(pool, state)
        tree, mask = pool.tree, choice.mask
        assert mask.dtype == np.bool_
        assert mask.shape == (tree.n_nodes,)
        assert mask[0]
        assert all(mask[tree.parent[v]] for v in np.flatnonzero(mask) if v)
        assert tree.depth[mask].max() <= choice.levels <= pool.n_levels
        policy.observe(pool, choice)


def test_the_reference_mip_chooses_what_exact_chooses() -> None:
    pytest.importorskip("ortools")
    for pool, state in _states(5, 3):
        values = []
        for name in ("mip", "exact"):
            choice = make_policy(name).choose(pool, state)
            values.append(_ratio(pool, state, choice))
        assert values[0] == pytest.approx(values[1], rel=1e-7)


def _ratio(pool: Pool, state: PassState, choice: Choice) -> float:
    cost = state.cost_model
    missing = pool.used(choice.mask) & ~state.resident
    seconds = cost.fixed_time + state.draft_time * choice.levels
    seconds += cost.node_time * int(choice.mask.sum())
    seconds += float((missing * cost.expert_table(*missing.shape)).sum())
    return float(pool.tree.path_prob[choice.mask].sum()) / seconds


@pytest.mark.parametrize("objective", ["ratio", "surplus"])
def test_drafting_every_level_is_the_exact_choice(objective: str) -> None:
    for pool, state in _states(11, 40):
        everything = make_policy("specfit-none", objective).choose(pool, state)
        exact = make_policy("exact", objective).choose(pool, state)
        assert everything.levels == exact.levels == pool.n_levels
        assert np.array_equal(everything.mask, exact.mask)


def _values_by_level(pool: Pool, state: PassState, rate: float | None) -> list[float]:
    """Best value with 0, 1, ... levels drafted, each search made afresh."""
    values = []
    tree, routing = pool.tree, pool.routing
    for deepest in range(pool.n_levels + 1):
        search = TreeSearch(
            state.cost_model, routing.n_layers, routing.n_experts, state.resident, rate=rate
        )
        number: dict[int, int] = {-1: -1}
        for level in range(deepest + 1):
            nodes = np.flatnonzero(tree.depth == level)
            for v in nodes.tolist():
                number[v] = len(number) - 1
            solution = search.extend(
                [number[u] for u in tree.parent[nodes].tolist()],
                tree.path_prob[nodes],
                routing.experts[nodes],
                draft_time=state.draft_time if level else 0.0,
            )
        values.append(solution.objective)
    return values


@pytest.mark.parametrize("objective", ["ratio", "surplus"])
def test_certified_never_gives_up_what_drafting_on_would_have_won(objective: str) -> None:
    policy = make_policy("specfit-certified", objective)
    stopped = 0
    for pool, state in _states(17, 60):
        rate = state.rate if objective == "surplus" else None
        values = _values_by_level(pool, state, rate)
        levels = policy.choose(pool, state).levels
        stopped += levels < pool.n_levels
        assert values[levels] >= max(values[levels:]) - 1e-9 * abs(values[levels])
    assert stopped > 10


def test_naive_stops_after_the_first_level_that_lowers_the_value() -> None:
    policy = make_policy("specfit-naive")
    stopped = 0
    for pool, state in _states(19, 60):
        values = _values_by_level(pool, state, None)
        falls = [d for d in range(1, len(values)) if values[d] < values[d - 1]]
        wanted = falls[0] if falls else pool.n_levels
        assert policy.choose(pool, state).levels == wanted
        stopped += wanted < pool.n_levels
    assert stopped > 10


def test_expected_never_drafts_more_than_certified() -> None:
    certified, expected = make_policy("specfit-certified"), make_policy("specfit-expected")
    fewer = 0
    for pool, state in _states(23, 60):
        most = certified.choose(pool, state).levels
        own = expected.choose(pool, state).levels
        assert own <= most
        fewer += own < most
    assert fewer > 5


def _line(accepted: list[bool], *, prob: float = 1.0, experts: list[int] | None = None) -> Trace:
    """A trace of one chain, which the target follows as told; every draft has ``prob``."""
    n = len(accepted)
    ids = np.array(experts or [0] * n, dtype=np.int16)
    return Trace(
        cycle_start=[0, n],
        prompt=[0],
        position=[0],
        parent=list(range(-1, n - 1)),
        token=[0] * n,
        path_prob=np.array([1.0, *[prob] * (n - 1)], dtype=np.float32),
        depth=list(range(n)),
        accepted=accepted,
        experts=ids.reshape(n, 1, 1),
        n_experts=int(ids.max()) + 1,
    )


def test_certified_looks_past_the_next_level() -> None:
    # The first token's experts are so dear that only a run of several pays for them.
    pool = Pool.of(_line([True] * 5, prob=0.9, experts=[0, 1, 1, 1, 1]).cycle(0))
    resident = np.array([[True, False]])
    state = PassState(resident, CostModel(1.0, 0.0, 2.5), 0.1, None)
    values = _values_by_level(pool, state, None)
    assert values[0] > max(values[1:4])
    assert values[4] > values[0]
    choice = make_policy("specfit-certified").choose(pool, state)
    assert choice.levels == 4
    assert choice.mask.all()


def test_naive_goes_on_while_the_value_merely_stands_still() -> None:
    pool = Pool.of(_line([True] * 4, prob=0.9, experts=[0, 1, 1, 1]).cycle(0))
    resident = np.array([[True, False]])
    dear = CostModel(1.0, 0.0, 100.0)
    policy = make_policy("specfit-naive")
    assert policy.choose(pool, PassState(resident, dear, 0.0, None)).levels == 3
    assert policy.choose(pool, PassState(resident, dear, 0.1, None)).levels == 1


@pytest.mark.parametrize(("draft_time", "levels"), [(0.6, 0), (0.4, 1), (0.3, 2), (0.2, 3)])
def test_gain_share_by_hand(draft_time: float, levels: int) -> None:
    # Before anything is learned half of all children are taken: a gain of 0.5 tokens by the first
    # level and 0.45 by each other. With d levels 1 + 0.9 d tokens are in hand, in 1 + d t seconds.
    pool = Pool.of(_line([True] * 5, prob=0.9).cycle(0))
    state = PassState(np.array([[True]]), CostModel(1.0, 0.0, 1.0), draft_time, None)
    choice = make_policy("specfit-gain-share").choose(pool, state)
    assert choice.levels == levels
    assert int(choice.mask.sum()) == levels + 1


def test_gain_share_learns_acceptance() -> None:
    pool = Pool.of(_line([True] * 5, prob=0.9).cycle(0))
    state = PassState(np.array([[True]]), CostModel(1.0, 0.0, 1.0), 0.6, None)
    policy = make_policy("specfit-gain-share").fresh()
    for _ in range(4):
        policy.observe(pool, Choice(np.ones(5, dtype=np.bool_), 4))
    assert policy.choose(pool, state).levels > 0  # none before


@pytest.mark.parametrize("objective", ["ratio", "surplus"])
def test_a_fixed_depth_is_the_exact_choice_from_so_many_levels(objective: str) -> None:
    policy = make_policy("specfit-depth-2", objective).fresh()
    for pool, state in _states(29, 40):
        choice = policy.choose(pool, state)
        assert choice.levels == min(2, pool.n_levels)
        if objective == "ratio":
            value = _values_by_level(pool, state, None)[choice.levels]
            assert _ratio(pool, state, choice) == pytest.approx(value)


def test_acceptance_is_learned_from_what_a_run_would_see() -> None:
    policy = SpecfitPolicy("expected")
    assert policy.acceptance(2) == [0.5, 0.5, 0.5]
    pool = Pool.of(_line([True, True, False]).cycle(0))
    everything = np.ones(3, dtype=np.bool_)
    policy.observe(pool, Choice(everything, 2))
    assert policy.acceptance(2) == [0.5, 2 / 3, 1 / 3]
    # The first drafted token is known to be right although it was not verified: the target's own
    # token says so. What might have followed it is not known.
    policy.observe(pool, Choice(np.array([True, False, False]), 2))
    assert policy.acceptance(2) == [0.5, 3 / 4, 1 / 3]
    # Nothing is learned about a level that was not drafted.
    policy.observe(pool, Choice(np.array([True, False, False]), 0))
    assert policy.acceptance(2) == [0.5, 3 / 4, 1 / 3]
    fresh = policy.fresh()
    assert isinstance(fresh, SpecfitPolicy)
    assert fresh.acceptance(2) == [0.5, 0.5, 0.5]


def test_a_replay_starts_without_memory() -> None:
    trace = random_trace(np.random.default_rng(2), prompts=3)
    policy = make_policy("specfit-expected")
    first = replay(trace, policies=[policy], cache=[3, 6])
    assert replay(trace, policies=[policy], cache=[3, 6]) == first
    assert replay(trace, policies=[policy], cache=[6]) == first[1:]


def test_chain_takes_the_earlier_of_equal_children_and_ends_with_the_pool() -> None:
    trace = Trace(
        cycle_start=[0, 5],
        prompt=[0],
        position=[0],
        parent=[-1, 0, 0, 2, 1],
        token=[0] * 5,
        path_prob=np.array([1, 0.5, 0.5, 0.25, 0.125], dtype=np.float32),
        depth=[0, 1, 1, 2, 2],
        accepted=[True, False, True, False, False],
        experts=np.zeros((5, 1, 1), dtype=np.int16),
        n_experts=1,
    )
    pool = Pool.of(trace.cycle(0))
    state = PassState(np.zeros((1, 1), np.bool_), CostModel(1.0, 0.0, 1.0), 0.0, None)
    choice = make_policy("chain-2").choose(pool, state)
    assert np.flatnonzero(choice.mask).tolist() == [0, 1, 4]
    assert choice.levels == 2
    assert pool.emitted(choice.mask) == 1
    choice = make_policy("eagle-3").choose(pool, state)
    assert np.flatnonzero(choice.mask).tolist() == [0, 1, 2]
    assert pool.emitted(choice.mask) == 2
    choice = make_policy("chain-9").choose(pool, state)
    assert np.flatnonzero(choice.mask).tolist() == [0, 1, 4]


def test_names() -> None:
    assert make_policy("chain-12").name == "chain-12"
    assert make_policy("chain").name == "chain"
    for name, kind in POLICIES.items():
        assert kind.summary
        assert kind.source
        if not kind.takes_objective:
            continue
        name = name.replace("-K", "-3")
        assert make_policy(name).name == name
        assert make_policy(name).objective == "ratio"
        for policy in (make_policy(f"{name}-surplus"), make_policy(name, "surplus")):
            assert policy.name == f"{name}-surplus"
            assert policy.objective == "surplus"
    assert make_policy("ar", "surplus").name == "ar"
    assert make_policy("ar").objective == ""
    policy = make_policy("exact")
    assert make_policy(policy) is policy


def test_every_method_but_enumeration_and_the_bare_root_is_a_policy() -> None:
    assert set(METHODS) - set(POLICIES) == {"brute", "root"}


def test_names_appear_once() -> None:
    policies = make_policies(["ar", "exact", "ar", "exact-surplus", "exact"], "ratio")
    assert [p.name for p in policies] == ["ar", "exact", "exact-surplus"]
    assert [p.name for p in make_policies("greedy", "surplus")] == ["greedy-surplus"]


def test_default_policies_fit_the_pools() -> None:
    assert set(FIXED_POLICIES) <= set(default_policies(6, 85))
    small = default_policies(2, 10)
    assert [name for name in small if name in FIXED_POLICIES] == [
        "ar",
        "chain-1",
        "chain-2",
        "eagle-8",
    ]
    for name in small:
        make_policy(name).check(2, 10)
    assert {"exact", "greedy", "evict", "ecospec", "specfit-certified"} <= set(small)
    assert "mip" not in small


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "policy 'best' is unknown; the policies are ar, chain-K, eagle-N"),
        ("chain-x", "policy 'chain-x' is unknown"),
        ("chain-K", "policy 'chain-K' is unknown"),
        ("root", "policy 'root' is unknown"),
        ("chain-0", "policy chain-0: the number must be at least 1"),
        ("eagle-0", "policy eagle-0: the number must be at least 1"),
        ("specfit-depth-0", "policy specfit-depth-0: the number must be at least 1"),
        ("specfit-depth-K", "policy 'specfit-depth-K' is unknown"),
        ("ar-surplus", "policy ar maximises nothing; drop the suffix -surplus"),
        ("chain-2-surplus", "policy chain-2 maximises nothing"),
        ("", "policy '' is unknown"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_policy(name)


def test_bad_options() -> None:
    with pytest.raises(InvalidInputError, match="objective 'speed' is unknown; use ratio or surpl"):
        make_policy("exact", "speed")
    with pytest.raises(InvalidInputError, match="stop rule 'soon' is unknown; the rules are none"):
        SpecfitPolicy("soon")
    with pytest.raises(InvalidInputError, match="no policy was given"):
        make_policies([], "ratio")


def test_fixed_policies_that_the_pools_cannot_serve() -> None:
    trace = random_trace(np.random.default_rng(1), max_nodes=6)
    with pytest.raises(InvalidInputError, match=r"policy chain-6 needs 6 levels but the trace's"):
        replay(trace, policies=["chain-6"])
    with pytest.raises(InvalidInputError, match=r"policy specfit-depth-6 needs 6 levels but"):
        replay(trace, policies=["specfit-depth-6"])
    with pytest.raises(InvalidInputError, match=r"policy eagle-7 needs 7 nodes but the trace's"):
        replay(trace, policies=["eagle-7"])
