from __future__ import annotations

import sys

import hand_worked as hand
import numpy as np
import pytest
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    MissingExtraError,
    SpecfitError,
    Status,
    solve,
    solve_instance,
)
from specfit_opt.methods import mip

pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")


@pytest.mark.parametrize("solver", ["highs", "gscip"])
def test_optimum_by_hand(solver):
    solution = solve_instance(hand.tree(), method="mip", solver=solver)
    assert solution.nodes.tolist() == [0, 1, 3]
    assert solution.status is Status.OPTIMAL
    assert solution.gap == 0.0
    assert solution.bound == solution.objective
    assert solution.stats["solver"] == solver
    assert solution.stats["incumbent"] == "solver"
    assert solution.stats["solver_bound"] == pytest.approx(2.4 / 4.75, rel=1e-6)


@pytest.mark.parametrize("solver", ["highs", "gscip"])
def test_forest_by_hand(solver):
    solution = solve_instance(hand.forest(), method="mip", solver=solver)
    assert solution.nodes.tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("sizes", "nodes"),
    [((1, 2, 4, 5), [0, 1, 2, 3, 4]), ((1, 2, 4), [0, 1, 2, 3]), ((2,), [0, 2])],
)
def test_forbidden_sizes_by_hand(sizes, nodes):
    assert solve_instance(hand.tree(hand.only(*sizes)), method="mip").nodes.tolist() == nodes


def test_max_nodes():
    assert solve_instance(hand.tree(), method="mip", max_nodes=2).nodes.tolist() == [0]


def test_surplus_by_hand():
    solution = solve_instance(hand.tree(), method="mip", rate=0.4)
    assert solution.n_selected == 5
    assert solution.objective == pytest.approx(3.15 - 0.4 * 6.25)
    assert solve_instance(hand.tree(), method="mip", rate=0.6).nodes.tolist() == [0]


def test_one_node_tree():
    solution = solve(
        DraftTree([-1], [1.0]), ExpertRouting([[[0]]], 1), CostModel(1.0, 0.5, 2.0), method="mip"
    )
    assert solution.nodes.tolist() == [0]
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("kind", KINDS)
def test_against_enumeration(kind):
    for seed in range(16):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, kind=kind)
        max_nodes = random_max_nodes(rng, instance)
        rate = random_rate(rng, instance) if seed % 4 == 0 else None
        best = solve_instance(instance, method="brute", rate=rate, max_nodes=max_nodes)
        ours = solve_instance(instance, method="mip", rate=rate, max_nodes=max_nodes)
        assert ours.status is Status.OPTIMAL, seed
        assert ours.objective == pytest.approx(best.objective, rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize("seed", range(5))
def test_gscip_against_enumeration(seed):
    instance = random_instance(np.random.default_rng(seed), kind="staircase")
    best = solve_instance(instance, method="brute")
    ours = solve_instance(instance, method="mip", solver="gscip")
    assert ours.status is Status.OPTIMAL
    assert ours.throughput == pytest.approx(best.throughput, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_times_of_any_magnitude(scale):
    instance = random_instance(np.random.default_rng(8), kind="staircase", n=10)
    cost = instance.cost_model
    scaled = CostModel(
        cost.fixed_time * scale,
        np.multiply(cost.node_time, scale),
        np.multiply(cost.expert_time, scale),
        cost.resident_time * scale,
    )
    best = solve_instance(instance, method="brute").throughput
    ours = solve(instance.tree, instance.routing, scaled, method="mip")
    assert ours.status is Status.OPTIMAL
    assert ours.throughput * scale == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("rate", [None, 2.0])
def test_time_limit_gives_a_valid_bound(rate):
    rng = np.random.default_rng(1)
    n = 40
    instance = random_instance(rng, kind="staircase", n=n, n_roots=1, n_layers=6, n_experts=30)
    solution = solve_instance(instance, method="mip", rate=rate, time_limit=1e-6)
    assert solution.status is Status.FEASIBLE
    assert solution.stats["incumbent"] in ("solver", "prefix")
    assert solution.gap >= 0.0
    best = solve_instance(instance, method="mip", rate=rate)
    assert best.status is Status.OPTIMAL
    assert solution.objective <= best.objective + 1e-9
    assert solution.bound >= best.objective


def test_no_proof_if_the_solver_and_the_evaluation_disagree(monkeypatch):
    monkeypatch.setattr(mip._Terms, "unscaled", lambda terms, value, rate: 1.01 * value)
    solution = solve_instance(hand.tree(), method="mip")
    assert solution.status is Status.FEASIBLE
    assert solution.bound >= solution.objective


def test_an_answer_that_breaks_the_constraints_is_refused():
    instance = hand.tree()
    terms = mip._terms(instance, None)
    orphan = {1: 0.0, 2: 0.0, 3: 1.0, 4: 0.0}
    with pytest.raises(SpecfitError, match=r"violates its own constraints.*\[0, 3\]"):
        mip._rounded(instance, terms, orphan, {v: v for v in orphan})


def test_unknown_solver():
    with pytest.raises(
        InvalidInputError, match="option solver must be 'highs' or 'gscip', got 'cp_sat'"
    ):
        solve_instance(hand.tree(), method="mip", solver="cp_sat")


def test_without_ortools(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.math_opt.python", None)
    with pytest.raises(MissingExtraError, match=r"ortools is not installed.*specfit\[mip\]"):
        solve_instance(hand.tree(), method="mip")
