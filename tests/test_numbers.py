"""The range of numbers and sizes: what lies inside is solved right, all else is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from strategies import random_routing, random_tree

from specfit_opt import (
    METHODS,
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    Solution,
    Status,
    TreeSearch,
    evaluate,
    load_instance,
    save_instance,
    solve,
    solve_instance,
    solve_many,
)
from specfit_opt.kernel import twin
from specfit_opt.limits import (
    LEAST_PASS,
    MOST_EXPERTS,
    MOST_NODES,
    MOST_RATE,
    MOST_SECONDS,
)
from specfit_opt.methods.exact import kernel_arguments

TREE = DraftTree([-1, 0, 0], [1.0, 0.5, 0.3])
ROUTING = ExpertRouting([[[0, 1]], [[1, 2]], [[3, 4]]], 8)
COST = CostModel(1.0, 0.1, 0.1)


def refused(message: str) -> Any:
    """Expect an InvalidInputError whose message matches the regular expression."""
    return pytest.raises(InvalidInputError, match=message)


# ---- inside the range


SEEDS = range(200)


def seconds(rng: np.random.Generator, size: tuple[int, ...] = ()) -> NDArray[np.float64]:
    """Draw times by their logarithm, over the whole range or a part of it, with zeros and ties."""
    reach = float(rng.choice([1.0, 4.0, 12.0]))
    low = float(rng.uniform(-12.0, 12.0 - 2.0 * reach)) if reach < 12.0 else -12.0
    time = 10.0 ** rng.uniform(low, low + 2.0 * reach, size)
    ties = rng.choice(10.0 ** rng.uniform(low, low + 2.0 * reach, 3), size)
    odd = rng.choice([0.0, 5e-324, MOST_SECONDS], size)
    return np.asarray(np.choose(rng.choice([0, 0, 0, 1, 1, 2], size), [time, ties, odd]))


def wide_instance(rng: np.random.Generator) -> Instance:
    """Return an instance whose times and probabilities span the whole range."""
    n = int(rng.integers(1, 11))
    tree = random_tree(rng, n, exact=bool(rng.random() < 0.3))
    if rng.random() < 0.3:
        chance = np.where(tree.parent < 0, 1.0, 10.0 ** -rng.choice([0.0, 0.1, 9.0, 200.0], n))
        tree = DraftTree.from_conditional(tree.parent, chance)
    routing = random_routing(rng, n)
    node_time: Any = float(seconds(rng))
    if rng.random() < 0.7:
        node_time = seconds(rng, (n + 1,))
        if rng.random() < 0.3:
            node_time.sort()
        node_time[(rng.random(n + 1) < 0.4) & (np.arange(n + 1) != n)] = math.inf
    shape = [(), (routing.n_layers,), routing.resident.shape][int(rng.integers(3))]
    expert_time: Any = seconds(rng, shape)
    return Instance(
        tree,
        routing,
        CostModel(
            max(float(seconds(rng)), LEAST_PASS),
            node_time,
            expert_time if shape else float(expert_time),
            float(rng.choice([0.0, float(seconds(rng))])),
        ),
    )


def wide_rate(rng: np.random.Generator, best: float) -> float | None:
    """Return a rate anywhere in the range or near the best ratio, or None, for the ratio."""
    kind = rng.random()
    if kind < 0.5:
        return None
    return min(10.0 ** rng.uniform(-18.0, 18.0) if kind < 0.75 else best * rng.random(), MOST_RATE)


def terms(solution: Solution) -> float:
    """What the objective is made of; its precision is relative to that."""
    if solution.rate is None:
        return solution.throughput
    return solution.expected_tokens + solution.rate * solution.cycle_time


def test_the_whole_range_is_solved_right() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng([seed, 13])
        instance = wide_instance(rng)
        rate = wide_rate(rng, solve_instance(instance, method="brute").throughput)
        brute = solve_instance(instance, method="brute", rate=rate)
        slack = 1e-9 * terms(brute)
        exact = solve_instance(instance, rate=rate)
        exact.check(instance.tree, instance.routing, instance.cost_model)
        assert exact.status is Status.OPTIMAL, seed
        assert abs(exact.objective - brute.objective) <= slack, seed
        for time_limit in (None, 1e-6):
            mask, proven, _, bound, *_ = twin.solve(
                *kernel_arguments(instance, rate, None, time_limit)
            )
            pure = evaluate(instance.tree, instance.routing, instance.cost_model, mask, rate=rate)
            assert proven or time_limit, seed
            assert pure.objective >= brute.objective - slack or not proven, seed
            assert bound >= brute.objective - slack, seed
        late = solve_instance(instance, rate=rate, time_limit=1e-9)
        assert late.bound is not None
        assert late.bound >= brute.objective - slack, seed


def test_every_method_gives_finite_figures() -> None:
    for seed in SEEDS[:60]:
        rng = np.random.default_rng([seed, 14])
        instance = wide_instance(rng)
        rate = wide_rate(rng, 1.0)
        for method in METHODS.keys() - {"mip", "brute"}:
            solution = solve_instance(instance, method=method, rate=rate)
            assert math.isfinite(solution.objective), (seed, method)


def test_a_short_time_beside_a_long_one_is_not_lost():
    # On the line through these times an intercept at size 0 would swallow the first of them.
    cost = CostModel(0.0, [0.0, 1e-6, 1e9, 2e9], 0.0)
    assert solve(TREE, ROUTING, cost).cycle_time == 1e-6


def test_a_rate_far_above_every_ratio_leaves_the_roots():
    solution = solve(TREE, ROUTING, COST, rate=MOST_RATE)
    assert solution.nodes.tolist() == [0]
    assert solution.status is Status.OPTIMAL


def test_probabilities_that_vanish():
    tree = DraftTree.from_conditional([-1, 0, 1, 2], [1.0, 1e-200, 1e-200, 0.5])
    assert tree.path_prob.tolist() == [1.0, 1e-200, 0.0, 0.0]
    assert solve(tree, ExpertRouting(np.zeros((4, 1, 1), int), 1), COST).nodes.tolist() == [0]


def test_negative_zero_is_zero():
    cost = CostModel(1.0, -0.0, -0.0, -0.0)
    assert math.copysign(1.0, cost.resident_time) == 1.0
    assert solve(TREE, ROUTING, cost, rate=-0.0).expected_tokens == pytest.approx(1.8)


# ---- outside of it


@pytest.mark.parametrize("kind", ["fixed_time", "node_time", "expert_time", "resident_time"])
@pytest.mark.parametrize("value", [1.1e12, 1e30, 1e308, 10**30, Fraction(10**13), Decimal("1e20")])
def test_times_above_the_range(kind: str, value: Any) -> None:
    times: dict[str, Any] = {"fixed_time": 1.0, "node_time": 0.1, "expert_time": 0.1}
    with refused(f"{kind} must be .* of seconds.* at most 1e.12, got"):
        CostModel(**{**times, kind: value})


@pytest.mark.parametrize("kind", ["fixed_time", "node_time", "expert_time", "resident_time"])
@pytest.mark.parametrize("value", [True, np.True_, "1", b"1", None, 1j, 10**400, np.array("1")])
def test_times_that_are_no_numbers(kind: str, value: Any) -> None:
    times: dict[str, Any] = {"fixed_time": 1.0, "node_time": 0.1, "expert_time": 0.1}
    with refused(kind):
        CostModel(**{**times, kind: value})


@pytest.mark.parametrize(
    "table",
    [
        [0.0, 10**400, 1.0],
        [0.0, Fraction(1, 2)],
        [0.0, Decimal(1)],
        [0.0, None],
        [0.0, "1"],
        [True, True],
        np.ma.masked_array([0.0, 1.0, 2.0], [False, True, False]),
        np.array([0, 1], dtype="datetime64[s]"),
        {"a": 1},
        [[0.0, 1.0], [2.0]],
    ],
)
def test_tables_that_hold_no_numbers(table: Any) -> None:
    with refused("node_time"):
        CostModel(1.0, table, 0.1)
    with refused("expert_time"):
        CostModel(1.0, 0.1, table)
    with refused("path_prob"):
        DraftTree([-1, 0], table)


def test_a_long_double_does_not_become_infinite() -> None:
    large = np.array([0.0, 1.0, np.longdouble("1e4000")], dtype=np.longdouble)
    if np.isinf(large).any():
        pytest.skip("long double is no wider than double here")
    with refused("node_time holds numbers that are too large for double precision"):
        CostModel(1.0, large, 0.1)


def test_a_sentinel_in_a_table_is_refused_in_every_form(tmp_path: Path) -> None:
    message = r"node_time\[2\] = 1e\+30; .* \(write inf for a size that is not allowed\)"
    with refused(message):
        CostModel(0.03, [0.0, 0.001, 1e30, math.inf], 0.002)
    save_instance(tmp_path / "a.json", Instance(TREE, ROUTING, CostModel(1.0, [0.0, 1, 2, 3], 0.1)))
    data = json.loads((tmp_path / "a.json").read_text())
    data["node_time"][2] = 1e30
    (tmp_path / "a.json").write_text(json.dumps(data))
    with refused(message):
        load_instance(tmp_path / "a.json")
    save_instance(tmp_path / "a.npz", Instance(TREE, ROUTING, CostModel(1.0, [0.0, 1, 2, 3], 0.1)))
    arrays = dict(np.load(tmp_path / "a.npz"))
    arrays["node_time"][2] = 1e30
    np.savez(tmp_path / "a.npz", **arrays)
    with refused(message):
        load_instance(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "cost",
    [
        CostModel(1e-310, 0.0, 0.0),
        CostModel(0.0, 9e-13, 1.0),
        CostModel(0.0, [0.0, 1.0, 1e-320, 1.0], 1.0),
    ],
)
def test_a_pass_of_no_time_to_speak_of_is_refused(cost: CostModel) -> None:
    with refused(r"fixed_time and node_time of an allowed size add up to .* at least 1e-12"):
        solve(TREE, ROUTING, cost)
    search = TreeSearch(cost, 1, 8)
    with refused("at least 1e-12"):
        search.extend(TREE.parent, TREE.path_prob, ROUTING.experts)
    assert search.n_nodes == 0


@pytest.mark.parametrize("value", [math.nan, -1.0, "1", True, 1j, 10**400, [1.0], np.zeros(2)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("rate", lambda v: solve(TREE, ROUTING, COST, rate=v)),
        ("time_limit", lambda v: solve(TREE, ROUTING, COST, time_limit=v)),
        ("fixed_time", lambda v: COST.with_fixed_time(v)),
        ("draft_time", lambda v: TreeSearch(COST, 1, 8).extend([-1], [1.0], [[[0]]], v)),
        ("level_time", lambda v: grown().advise(v)),
        ("eps", lambda v: solve(TREE, ROUTING, COST, method="ecospec", eps=v)),
    ],
)
def test_arguments_that_are_no_numbers(
    name: str, call: Callable[[Any], object], value: Any
) -> None:
    with refused(name):
        call(value)


@pytest.mark.parametrize("value", [math.nan, 1.5, "1", True, 0, -(10**400), [1], np.zeros(2)])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("max_nodes", lambda v: solve(TREE, ROUTING, COST, max_nodes=v)),
        ("levels", lambda v: grown().advise(0.1, levels=v)),
        ("n_experts", lambda v: ExpertRouting([[[0]]], v)),
        ("n_layers", lambda v: TreeSearch(COST, v, 8)),
        ("budget", lambda v: solve(TREE, ROUTING, COST, method="eagle", budget=v)),
        ("chunk_size", lambda v: solve_many([], chunk_size=v)),
    ],
)
def test_arguments_that_are_no_counts(name: str, call: Callable[[Any], object], value: Any) -> None:
    with refused(name):
        call(value)


def grown() -> TreeSearch:
    """Return a search over a root."""
    search = TreeSearch(COST, 1, 8)
    search.extend([-1], [1.0], [[[0]]])
    return search


def test_rates_above_the_range() -> None:
    with refused("rate must be .* tokens per second .* at most 1e.18"):
        solve(TREE, ROUTING, COST, rate=1.1e18)


def test_weights_of_any_size_are_relative() -> None:
    for unit in (1e308, 1e-300):
        routing = ExpertRouting.from_scenarios([[[[0]]], [[[1]]]], 2, weights=[unit, unit / 2.0])
        assert routing.scenario_weights is not None
        assert routing.scenario_weights.tolist() == pytest.approx([2 / 3, 1 / 3])


# ---- sizes


def test_what_a_number_allocates_is_bounded() -> None:
    with refused("n_experts = 1000000000; at most 65536 are taken"):
        ExpertRouting([[[0]]], 10**9)
    with refused("n_experts = 1000000; at most 65536"):
        TreeSearch(COST, 10**6, 10**6)
    with refused("n_layers = 1000000000 and n_experts = 1 are too many"):
        ExpertRouting(np.zeros((1, 10**9, 0), dtype=np.int16), 1)
    with refused("300 scenarios of 3 nodes, 50 layers and 65536 experts are too many"):
        sample = np.zeros((300, 3, 50, 0), dtype=np.int16)
        ExpertRouting.from_scenarios(sample, MOST_EXPERTS)
    with refused(f"the tree has {MOST_NODES + 1} nodes; at most {MOST_NODES} are taken"):
        DraftTree(np.full(MOST_NODES + 1, -1), np.ones(MOST_NODES + 1))
    with refused("levels must be a whole number from 1 to 1024, got 1000000"):
        grown().advise(0.1, levels=10**6)
    assert ExpertRouting([[[0]]], MOST_EXPERTS).n_experts == MOST_EXPERTS


def test_a_limit_above_the_tree_is_none() -> None:
    for limit in (3, 10**30, np.int64(7)):
        assert solve(TREE, ROUTING, COST, max_nodes=limit).n_selected == 2
        assert solve(TREE, ROUTING, COST, time_limit=1e300).n_selected == 2


def test_ids_of_other_types_are_those_that_they_seem() -> None:
    search = grown()
    with refused(r"experts\[0, 0, 0\] = 18446744073709551615 of this level is no expert of 8"):
        search.extend([0], [0.5], np.full((1, 1, 1), 2**64 - 1, dtype=np.uint64))
    swapped = np.full((1, 1, 1), 3, dtype=">i4")
    assert search.extend([0], [0.9], swapped).experts_used.tolist() == [2]
    with refused("experts is not a rectangular array"):
        search.extend([0], [0.5], [[[0], [1, 2]]])


def test_a_read_only_view_of_residents_is_taken() -> None:
    resident = np.zeros((8, 2), dtype=np.bool_).T
    resident.flags.writeable = False
    routing = ExpertRouting(np.zeros((1, 2, 1), dtype=int), 8, resident)
    assert solve(DraftTree([-1], [1.0]), routing, COST).n_selected == 1
