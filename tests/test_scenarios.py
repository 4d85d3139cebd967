"""Uncertain routing: scenarios as one weighted coverage function."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import (
    METHODS,
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    Solution,
    Status,
    evaluate,
    save_instance,
    solve_instance,
)
from specfit_opt.files.closure_model import closure_model
from specfit_opt.kernel import twin
from specfit_opt.methods.exact import kernel_arguments

SEEDS = range(12)


def uncertain(
    rng: np.random.Generator, kind: str, n: int | None = None
) -> tuple[Instance, list[Instance]]:
    """Return a random problem with scenarios, and each of its scenarios as a certain problem."""
    certain = random_instance(rng, kind=kind, n=n)
    routing = certain.routing
    count = int(rng.integers(1, 5))
    ids = np.repeat(routing.experts[None], count, axis=0)
    moved = rng.random(ids.shape) < 0.5
    ids[moved] = rng.integers(-1, routing.n_experts, int(moved.sum()))
    weights = None if rng.random() < 0.5 else rng.random(count) + 0.1
    mixed = ExpertRouting.from_scenarios(ids, routing.n_experts, routing.resident, weights=weights)
    tree, cost = certain.tree, certain.cost_model
    return Instance(tree, mixed, cost), [
        Instance(tree, ExpertRouting(one, routing.n_experts, routing.resident), cost) for one in ids
    ]


def closed_sets(tree: DraftTree) -> list[NDArray[np.bool_]]:
    """Return every ancestor-closed set with all roots."""
    sets = [tree.parent < 0]
    for v in np.flatnonzero(tree.parent >= 0):
        for mask in [s for s in sets if s[tree.parent[v]]]:
            more = mask.copy()
            more[v] = True
            sets.append(more)
    return sets


def same(a: Solution, b: Solution) -> bool:
    scale = a.throughput if a.rate is None else a.expected_tokens + a.rate * a.cycle_time
    return abs(a.objective - b.objective) <= 1e-9 * scale


@pytest.mark.parametrize("kind", KINDS)
def test_every_set_costs_the_mean_over_the_scenarios(kind: str) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng([KINDS.index(kind), seed, 2])
        mixed, scenarios = uncertain(rng, kind, n=int(rng.integers(1, 8)))
        weights = mixed.routing.scenario_weights
        table = mixed.cost_model.node_table(mixed.tree.n_nodes)
        for mask in closed_sets(mixed.tree):
            if not np.isfinite(table[mask.sum()]):
                continue
            ours = evaluate(mixed.tree, mixed.routing, mixed.cost_model, mask)
            each = [evaluate(s.tree, s.routing, s.cost_model, mask) for s in scenarios]
            assert ours.transfer_time == pytest.approx(weights @ [s.transfer_time for s in each])
            assert ours.cycle_time == pytest.approx(weights @ [s.cycle_time for s in each])
            assert ours.throughput == pytest.approx(ours.expected_tokens / ours.cycle_time)
            for name in ("experts_loaded", "experts_used"):
                counts = getattr(ours, name)
                assert counts.shape == (mixed.routing.n_layers,)
                assert counts == pytest.approx(weights @ np.stack([getattr(s, name) for s in each]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_solver_agrees(kind: str) -> None:
    for seed in range(60):
        rng = np.random.default_rng([KINDS.index(kind), seed, 3])
        mixed, _ = uncertain(rng, kind)
        limits = {
            "rate": random_rate(rng, mixed) if rng.random() < 0.4 else None,
            "max_nodes": random_max_nodes(rng, mixed),
        }
        exact = solve_instance(mixed, **limits)
        exact.check(mixed.tree, mixed.routing, mixed.cost_model)
        assert exact.status is Status.OPTIMAL
        brute = solve_instance(mixed, method="brute", **limits)
        assert same(brute, exact), seed
        assert brute.n_selected == exact.n_selected, seed
        mask, proven, *_ = twin.solve(
            *kernel_arguments(mixed, limits["rate"], limits["max_nodes"], None)
        )
        pure = evaluate(mixed.tree, mixed.routing, mixed.cost_model, mask, rate=limits["rate"])
        assert proven
        assert same(brute, pure), seed


@pytest.mark.parametrize("kind", KINDS)
def test_the_mip_agrees(kind: str) -> None:
    pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")
    for seed in range(3):
        mixed, _ = uncertain(np.random.default_rng([KINDS.index(kind), seed, 4]), kind)
        mip = solve_instance(mixed, method="mip")
        assert mip.status is Status.OPTIMAL
        assert same(solve_instance(mixed), mip), seed


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mip"])
def test_no_method_beats_exact(method: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, 5])
        mixed, _ = uncertain(rng, str(rng.choice(KINDS)))
        solution = solve_instance(mixed, method=method)
        solution.check(mixed.tree, mixed.routing, mixed.cost_model)
        assert solution.objective <= solve_instance(mixed).objective * (1.0 + 1e-9)


def test_an_exported_program_has_the_surplus_as_its_objective() -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, 6])
        mixed, _ = uncertain(rng, "affine")
        rate = random_rate(rng, mixed)
        solution = solve_instance(mixed, rate=rate)
        model = closure_model(mixed, rate)
        assert len(set(model.columns)) == len(model.columns)
        value = np.zeros(len(model.columns))
        value[: len(solution.mask)] = solution.mask
        value[-1] = 1.0
        for a, b in model.arcs:
            value[b] = max(value[a], value[b])
        assert model.objective @ value == pytest.approx(solution.objective, rel=1e-9, abs=1e-9)


def certain_and_mixed(
    seed: int, arrange: Any
) -> tuple[dict[str, Any], dict[str, Any], Solution, Solution]:
    """Return the solutions of a problem and of one that ``arrange`` makes of its scenarios."""
    rng = np.random.default_rng([seed, 7])
    mixed, _ = uncertain(rng, str(rng.choice(KINDS)))
    routing = mixed.routing
    ids, weights = arrange(rng, routing.experts, routing.scenario_weights)
    other = ExpertRouting.from_scenarios(ids, routing.n_experts, routing.resident, weights=weights)
    a, b = (solve_instance(Instance(mixed.tree, r, mixed.cost_model)) for r in (routing, other))
    return a.to_dict(), b.to_dict(), a, b


@pytest.mark.parametrize(
    "arrange",
    [
        lambda rng, ids, w: (ids[::-1], w[::-1]),
        lambda rng, ids, w: (ids, 7.0 * w),
        lambda rng, ids, w: (np.repeat(ids, 3, axis=0), np.repeat(w, 3)),
        lambda rng, ids, w: (np.concatenate([ids, ids]), np.concatenate([0.25 * w, 0.75 * w])),
        lambda rng, ids, w: (np.concatenate([ids, ids[..., :1]], axis=-1), w),
    ],
    ids=["reversed", "other scale", "repeated", "split", "an expert twice"],
)
def test_what_does_not_change_the_mixture_changes_nothing(arrange: Any) -> None:
    for seed in range(20):
        one, other, a, b = certain_and_mixed(seed, arrange)
        assert same(a, b), seed
        assert one["nodes"] == other["nodes"], seed
        assert one["experts_loaded"] == pytest.approx(other["experts_loaded"])


@pytest.mark.parametrize("count", [1, 3])
def test_one_scenario_again_and_again_is_certain_routing(count: int) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng([seed, 8])
        certain = random_instance(rng)
        routing = certain.routing
        repeated = ExpertRouting.from_scenarios(
            np.repeat(routing.experts[None], count, axis=0), routing.n_experts, routing.resident
        )
        a = solve_instance(certain)
        b = solve_instance(Instance(certain.tree, repeated, certain.cost_model))
        assert same(a, b)
        assert a.nodes.tolist() == b.nodes.tolist()
        assert b.experts_loaded == pytest.approx(a.experts_loaded)
        assert b.experts_used == pytest.approx(a.experts_used)


def test_a_mean_of_costs_can_choose_what_no_scenario_would() -> None:
    tree = DraftTree([-1, 0, 0], [1.0, 0.5, 0.4])
    # One of nodes 1 and 2 is dear, and which one is not known.
    experts = [[[[0]], [[1]], [[0]]], [[[0]], [[0]], [[1]]]]
    cost = CostModel(1.0, 0.0, [[0.0, 0.6]])
    alone = [Instance(tree, ExpertRouting(one, 2), cost) for one in experts]
    assert [solve_instance(s).nodes.tolist() for s in alone] == [[0, 2], [0, 1]]
    routing = ExpertRouting.from_scenarios(experts, 2)
    both = solve_instance(Instance(tree, routing, cost))
    assert both.nodes.tolist() == [0, 1, 2]
    assert both.throughput == pytest.approx(1.9 / 1.6)


def test_attributes() -> None:
    ids = np.array([[[[0, 1]], [[1, -1]]], [[[2, 2]], [[65, 0]]], [[[3, 1]], [[0, 1]]]])
    resident = np.arange(66)[None] < 2
    routing = ExpertRouting.from_scenarios(ids, 66, resident, weights=[1, 2, 1])
    assert (routing.n_scenarios, routing.n_nodes, routing.n_layers) == (3, 2, 1)
    assert routing.rows.tolist() == [[0b11, 0, 0b100, 0, 0b1010, 0], [0b10, 0, 1, 2, 0b11, 0]]
    assert routing.experts.tolist() == ids.tolist()
    assert routing.scenario_weights.tolist() == [0.25, 0.5, 0.25]
    assert np.argwhere(routing.union(np.array([False, True]))).tolist() == [
        [0, 0, 1],
        [1, 0, 0],
        [1, 0, 65],
        [2, 0, 0],
        [2, 0, 1],
    ]
    assert repr(routing).startswith("ExpertRouting(n_scenarios=3, n_nodes=2, n_layers=1, ")
    for other in (pickle.loads(pickle.dumps(routing)), routing.with_resident(resident)):
        assert other.rows.tolist() == routing.rows.tolist()
        assert other.experts.tolist() == ids.tolist()
        assert other.scenario_weights.tolist() == [0.25, 0.5, 0.25]
        for array in (other.experts, other.rows, other.resident, other.scenario_weights):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    certain = ExpertRouting(ids[0], 66)
    assert certain.scenario_weights is None
    assert certain.n_scenarios == 1
    assert certain.union(np.array([True, False])).nonzero()[1].tolist() == [0, 1]


def test_many_layers_of_many_scenarios() -> None:
    rng = np.random.default_rng(9)
    count, n, n_layers, n_experts, k = 32, 20, 48, 128, 8
    ids = rng.integers(0, n_experts, (count, n, n_layers, k), dtype=np.int16)
    resident = rng.random((n_layers, n_experts)) < 0.5
    tree = DraftTree.from_conditional(
        [-1, *(int(rng.integers(0, v)) for v in range(1, n))], [1.0, *rng.random(n - 1)]
    )
    cost = CostModel(0.01, 1e-4, rng.random(n_layers) * 1e-4, 1e-5)
    mixed = ExpertRouting.from_scenarios(ids, n_experts, resident)
    solution = solve_instance(Instance(tree, mixed, cost))
    brute = solve_instance(Instance(tree, mixed, cost), method="brute")
    assert same(solution, brute)
    each = [
        evaluate(tree, ExpertRouting(one, n_experts, resident), cost, solution.mask) for one in ids
    ]
    assert solution.transfer_time == pytest.approx(np.mean([s.transfer_time for s in each]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": [[[0]]]}, r"shape \(scenarios, nodes, layers, slots\), got \(1, 1, 1\)"),
        ({"experts": np.zeros((0, 2, 1, 1), int)}, "experts has no scenarios; give at least one"),
        ({"experts": np.zeros((1, 2, 0, 1), int)}, "experts has no layers"),
        ({"experts": np.zeros((1, 2, 1, 1))}, "experts must hold integers, got dtype float64"),
        ({"experts": [[[[0]], [[0]]], [[[0]], [[2]]]]}, r"experts\[1, 1, 0, 0\] = 2 is no expert"),
        ({"n_experts": 0}, "n_experts must be a whole number of at least 1"),
        ({"resident": np.zeros((2, 2), bool)}, r"resident has shape \(2, 2\)"),
        ({"weights": [1.0]}, r"weights has shape \(1,\) but experts holds 2 scenarios"),
        ({"weights": [1.0, 0.0]}, r"weights\[1\] = 0.0; weights must be positive and finite"),
        ({"weights": [np.nan, 1.0]}, r"weights\[0\] = nan"),
        ({"weights": [1.0, np.inf]}, r"weights\[1\] = inf"),
    ],
)
def test_bad_scenarios(change: dict[str, Any], message: str) -> None:
    given_: dict[str, Any] = {"experts": np.zeros((2, 2, 1, 1), int), "n_experts": 2, **change}
    with pytest.raises(InvalidInputError, match=message):
        ExpertRouting.from_scenarios(given_.pop("experts"), given_.pop("n_experts"), **given_)


def test_the_cost_model_is_that_of_one_scenario() -> None:
    tree = DraftTree([-1], [1.0])
    routing = ExpertRouting.from_scenarios(np.zeros((3, 1, 2, 1), int), 4)
    Instance(tree, routing, CostModel(1.0, 0.0, [0.1, 0.2]))
    with pytest.raises(InvalidInputError, match="the routing has 2 layers"):
        Instance(tree, routing, CostModel(1.0, 0.0, np.ones(6)))


@pytest.mark.parametrize("extension", ["npz", "json"])
def test_instance_files_do_not_hold_scenarios(tmp_path: Any, extension: str) -> None:
    routing = ExpertRouting.from_scenarios(np.zeros((3, 1, 1, 1), int), 4)
    instance = Instance(DraftTree([-1], [1.0]), routing, CostModel(1.0, 0.0, 0.1))
    with pytest.raises(InvalidInputError, match="this instance has 3 scenarios; save each"):
        save_instance(tmp_path / f"a.{extension}", instance)
    assert not list(tmp_path.iterdir())
