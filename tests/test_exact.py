"""The exact method: recorded optima, ties, limits, and bounds when time runs out."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    Status,
    load_instance,
    solve,
    solve_instance,
)
from specfit_opt.generate import generate

DATA = Path(__file__).parent / "data"
OPTIMA = json.loads((DATA / "optima.json").read_text())


def assert_is_recorded_optimum(path, recorded):
    instance = load_instance(path)
    solution = solve_instance(instance)
    solution.check(instance.tree, instance.routing, instance.cost_model)
    assert solution.status is Status.OPTIMAL
    assert solution.gap == 0.0
    assert solution.bound == solution.throughput
    assert solution.throughput == pytest.approx(recorded["throughput"], rel=1e-9)
    assert solution.expected_tokens == pytest.approx(recorded["expected_tokens"], rel=1e-9)
    assert solution.n_selected == recorded["selected"]


@pytest.mark.parametrize("name", OPTIMA)
def test_recorded_optimum(name):
    assert_is_recorded_optimum(DATA / f"{name}.npz", OPTIMA[name])


def test_optima_of_real_routing(shared):
    folder = shared / "instances"
    recorded = json.loads((folder / "optima.json").read_text())
    real = [name for name in recorded if name.startswith("real-")]
    assert len(real) == 30
    for name in real:
        assert_is_recorded_optimum(folder / f"{name}.npz", recorded[name])


def test_equal_ratios_go_to_the_fewest_nodes():
    # Each child pays exactly its way at the root's own ratio: 1 / 2 = (1 + 0.5 k) / (2 + k).
    tree = DraftTree([-1, 0, 0, 0], [1.0, 0.5, 0.5, 0.5])
    routing = ExpertRouting([[[0]], [[1]], [[2]], [[3]]], 4)
    solution = solve(tree, routing, CostModel(1.0, 0.5, 0.5))
    assert solution.throughput == 0.5
    assert solution.nodes.tolist() == [0]


def test_equal_surplus_under_a_table_goes_to_the_fewest_nodes():
    # Sizes 2 and 3 tie at rate 1: the third node adds 0.25 tokens and 0.25 seconds.
    tree = DraftTree([-1, 0, 0], [1.0, 0.5, 0.25])
    routing = ExpertRouting([[[0]], [[0]], [[0]]], 1)
    cost = CostModel(1.0, [math.inf, 1.0, 1.125, 1.375], 0.0)
    assert solve(tree, routing, cost, rate=1.0).nodes.tolist() == [0, 1]


def test_sharing_makes_a_group_worth_more_than_its_members():
    # Either child alone lowers the ratio; both share the expert that is dear.
    tree = DraftTree([-1, 0, 0], [1.0, 0.5, 0.5])
    routing = ExpertRouting([[[0]], [[1]], [[1]]], 2)
    cost = CostModel(0.9, 0.05, np.array([[0.05, 0.55]]))
    assert solve(tree, routing, cost, method="greedy").n_selected == 1
    assert solve(tree, routing, cost).n_selected == 3


def test_every_root_is_chosen():
    tree = DraftTree([-1, 0, -1, 2, -1], [1.0, 0.9, 1.0, 0.0, 1.0])
    routing = ExpertRouting(np.arange(5).reshape(5, 1, 1), 5)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1))
    assert solution.nodes.tolist() == [0, 1, 2, 4]


def test_node_limit():
    instance = generate("qwen3-30b-a3b", seed=0, nodes=60)
    free = solve_instance(instance)
    assert free.n_selected > 4
    limited = solve_instance(instance, max_nodes=4)
    assert limited.n_selected <= 4
    assert limited.status is Status.OPTIMAL
    assert limited.throughput < free.throughput
    assert solve_instance(instance, max_nodes=60).nodes.tolist() == free.nodes.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time_limit", [1e-9, 1e-5])
def test_bound_is_valid_when_time_runs_out(kind, time_limit):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, kind=kind)
        limits = {
            "rate": random_rate(rng, instance) if seed % 2 else None,
            "max_nodes": random_max_nodes(rng, instance),
        }
        best = solve_instance(instance, method="brute", **limits)
        solution = solve_instance(instance, time_limit=time_limit, **limits)
        solution.check(instance.tree, instance.routing, instance.cost_model)
        slack = 1e-9 * max(abs(best.objective), 1e-3)
        assert solution.objective <= best.objective + slack
        assert solution.bound >= best.objective - slack
        assert solution.gap >= 0.0
        if solution.status is Status.OPTIMAL:
            assert solution.objective >= best.objective - slack


@pytest.mark.parametrize("rate", [None, 1.0])
def test_hard_star_ends_at_its_time_limit_with_a_bound(rate):
    instance = generate("densest-k-subgraph", seed=0, nodes=200)
    solution = solve_instance(instance, time_limit=0.2, rate=rate)
    assert solution.status is Status.FEASIBLE
    assert solution.objective < solution.bound < math.inf
    assert solution.gap > 0.0
    assert solution.stats["branches"] > 0


def test_more_time_never_loosens_the_bound_of_a_hard_star():
    instance = generate("densest-k-subgraph", seed=1, nodes=60)
    short, long = (solve_instance(instance, time_limit=t) for t in (0.02, 0.5))
    assert long.bound <= short.bound * (1 + 1e-12)
    assert long.throughput >= short.throughput * (1 - 1e-12)


def test_large_pool_is_solved_to_the_end():
    solution = solve_instance(generate("pool", seed=0, nodes=5000))
    assert solution.status is Status.OPTIMAL
    assert solution.gap == 0.0


def test_nodes_that_cost_nothing_are_taken_only_for_their_tokens():
    tree = DraftTree([-1, 0, 1, 0], [1.0, 0.5, 0.25, 0.0])
    routing = ExpertRouting(np.zeros((4, 1, 1), dtype=int), 1, [[True]])
    solution = solve(tree, routing, CostModel(1.0, 0.0, 1.0))
    assert solution.nodes.tolist() == [0, 1, 2]


def test_rate_zero_takes_every_token_there_is():
    instance = generate("qwen3-30b-a3b", seed=3, nodes=40)
    solution = solve_instance(instance, rate=0.0)
    useful = int((instance.tree.path_prob > 0).sum())
    assert solution.n_selected == useful
    assert solution.objective == pytest.approx(instance.tree.path_prob.sum())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": math.nan}, "rate must be a finite number"),
        ({"rate": -1.0}, "rate must be a finite number"),
        ({"rate": "fast"}, "rate must be a finite number"),
        (
            {"max_nodes": 0},
            "max_nodes, which counts the roots, must be",
        ),
        (
            {"max_nodes": 2.5},
            "max_nodes, which counts the roots, must be",
        ),
        ({"time_limit": 0.0}, "time_limit must be a number of seconds above 0"),
        ({"time_limit": math.nan}, "time_limit must be a number of seconds above 0"),
        ({"method": "best"}, "method 'best' is unknown; the methods are exact"),
        ({"budget": 3}, "method 'exact' has no option 'budget'"),
    ],
)
def test_bad_argument(arguments, message):
    tree = DraftTree([-1], [1.0])
    routing = ExpertRouting([[[0]]], 1)
    with pytest.raises(InvalidInputError, match=message):
        solve(tree, routing, CostModel(1.0, 0.1, 0.1), **arguments)


def test_time_limit_is_seconds_not_a_share():
    start = time.monotonic()
    solution = solve_instance(generate("qwen3-30b-a3b", seed=0), time_limit=3600.0)
    assert solution.status is Status.OPTIMAL
    assert time.monotonic() - start < 3600.0
