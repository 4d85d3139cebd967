"""evaluate() by hand and against the definition, and the checks of Solution."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    Solution,
    Status,
    evaluate,
)

TREE = DraftTree([-1, 0, 0, 1], [1.0, 0.5, 0.25, 0.25])
# Layer 0 and layer 1 of nodes 0 to 3; expert 0 of layer 0 is resident.
ROUTING = ExpertRouting(
    [[[0, 1], [2, -1]], [[1, 2], [2, 2]], [[3, 3], [0, 1]], [[0, 1], [3, -1]]],
    4,
    np.array([[True, False, False, False], [False] * 4]),
)
COST = CostModel(1.0, 0.25, [[0.5, 0.5, 0.25, 2.0], [0.125, 0.125, 1.0, 4.0]], 0.0625)


def test_root_by_hand() -> None:
    solution = evaluate(TREE, ROUTING, COST, [0])
    # Layer 0: expert 0 resident, 1 loaded. Layer 1: expert 2 loaded.
    assert solution.transfer_time == 0.0625 + 0.5 + 1.0
    assert solution.compute_time == 1.25
    assert solution.cycle_time == 2.8125
    assert solution.expected_tokens == 1.0
    assert solution.throughput == 1.0 / 2.8125
    assert solution.experts_loaded.tolist() == [1, 1]
    assert solution.experts_used.tolist() == [2, 1]
    assert solution.nodes.tolist() == [0]
    assert solution.mask.tolist() == [True, False, False, False]
    assert (solution.status, solution.bound, solution.gap) == (Status.FEASIBLE, None, None)


def test_union_is_paid_once_by_hand() -> None:
    solution = evaluate(TREE, ROUTING, COST, [3, 1, 0])
    # Layer 0: 0 resident, 1 and 2 loaded. Layer 1: 2 and 3 loaded; node 1 repeats 2.
    assert solution.transfer_time == 0.0625 + 0.5 + 0.25 + 1.0 + 4.0
    assert solution.compute_time == 1.75
    assert solution.expected_tokens == 1.75
    assert solution.experts_loaded.tolist() == [2, 2]
    assert solution.experts_used.tolist() == [3, 2]
    assert solution.nodes.tolist() == [0, 1, 3]


def test_surplus_by_hand() -> None:
    solution = evaluate(TREE, ROUTING, COST, [0, 1], rate=0.5)
    time = 1.5 + 0.0625 + 0.5 + 0.25 + 1.0
    assert solution.cycle_time == time
    assert solution.objective == 1.5 - 0.5 * time
    assert solution.throughput == 1.5 / time
    assert evaluate(TREE, ROUTING, COST, [0, 1]).objective == 1.5 / time


def test_table_by_hand() -> None:
    cost = CostModel(1.0, [9.0, 0.5, 0.5, 0.75, math.inf], 0.0)
    assert evaluate(TREE, ROUTING, cost, [0, 1, 2]).cycle_time == 1.75
    with pytest.raises(InvalidInputError, match="node_time forbids 4 nodes"):
        evaluate(TREE, ROUTING, cost, [0, 1, 2, 3])


def definition(instance: Instance, nodes: list[int]) -> tuple[float, float]:
    """Return P(S) and T(S) straight from the statement of the problem."""
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    tokens = sum(float(tree.path_prob[v]) for v in nodes)
    time = cost.fixed_time
    if isinstance(cost.node_time, float):
        time += cost.node_time * len(nodes)
    else:
        time += float(cost.node_time[len(nodes)])
    table = cost.expert_table(routing.n_layers, routing.n_experts)
    for layer in range(routing.n_layers):
        union = {int(e) for v in nodes for e in routing.experts[v, layer] if e >= 0}
        for e in union:
            here = routing.resident[layer, e]
            time += cost.resident_time if here else float(table[layer, e])
    return tokens, time


@st.composite
def closed_sets(draw: st.DrawFn) -> tuple[Instance, list[int]]:
    instance = draw(strategies.instances())
    tree = instance.tree
    nodes = set(tree.roots.tolist())
    for v in draw(st.sets(st.integers(0, tree.n_nodes - 1))):
        nodes |= set(tree.path(v))
    table = instance.cost_model.node_table(tree.n_nodes)
    if not math.isfinite(table[len(nodes)]):
        order = tree.prefix_order()
        sizes = np.flatnonzero(np.isfinite(table[tree.n_roots :])) + tree.n_roots
        nodes = set(order[: draw(st.sampled_from(sizes.tolist()))].tolist())
    return instance, sorted(nodes)


@given(closed_sets())
def test_evaluate_is_the_definition(case: tuple[Instance, list[int]]) -> None:
    instance, nodes = case
    tokens, time = definition(instance, nodes)
    solution = evaluate(instance.tree, instance.routing, instance.cost_model, nodes)
    assert solution.expected_tokens == pytest.approx(tokens, rel=1e-12)
    assert solution.cycle_time == pytest.approx(time, rel=1e-12)
    assert solution.throughput == pytest.approx(tokens / time, rel=1e-12)
    solution.check(instance.tree, instance.routing, instance.cost_model)


@given(closed_sets(), st.randoms(use_true_random=False))
def test_how_nodes_are_named_does_not_matter(case: tuple[Instance, list[int]], random: Any) -> None:
    instance, nodes = case
    shuffled = nodes + nodes[:1]
    random.shuffle(shuffled)
    mask = np.zeros(instance.tree.n_nodes, dtype=np.bool_)
    mask[nodes] = True
    parts = (instance.tree, instance.routing, instance.cost_model)
    expected = evaluate(*parts, nodes)
    for same in (shuffled, mask, np.array(shuffled, dtype=np.uint8), iter(shuffled), set(nodes)):
        other = evaluate(*parts, same)
        assert other.nodes.tolist() == nodes
        assert other.throughput == expected.throughput


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([0, 4], "node 4 is not in the tree of 4 nodes"),
        ([0, -1], "node -1 is not in the tree"),
        ([1], "root 0 is missing"),
        ([], "root 0 is missing"),
        ([0, 3], "node 3 is chosen without its parent 1"),
        ([0.0, 1.0], "nodes must be integers or a mask, got dtype float64"),
        (np.ones(3, dtype=np.bool_), r"mask has shape \(3,\) but the tree 4 nodes"),
    ],
)
def test_sets_that_are_none(nodes: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate(TREE, ROUTING, COST, nodes)


def test_evaluate_changes_no_mask_of_the_caller() -> None:
    mask = np.array([True, True, False, False])
    solution = evaluate(TREE, ROUTING, COST, mask)
    mask[2] = True
    assert solution.mask.tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match="read-only"):
        solution.mask[0] = False
    with pytest.raises(ValueError, match="read-only"):
        solution.nodes[0] = 1


def test_contradictions_are_refused() -> None:
    solution = evaluate(TREE, ROUTING, COST, [0, 1])
    for change in (
        {"throughput": solution.throughput * 1.001},
        {"cycle_time": solution.cycle_time * 1.001},
        {"expected_tokens": 2.0},
        {"nodes": np.array([], dtype=np.int64)},
    ):
        with pytest.raises(InvalidInputError, match="contradicts itself"):
            dataclasses.replace(solution, **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="exceeds the bound"):
        dataclasses.replace(solution, bound=solution.throughput * 0.999)
    assert dataclasses.replace(solution, bound=solution.throughput * 1.001).bound is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": np.array([True, False, True, False])}, "mask and nodes name different sets"),
        ({"experts_loaded": np.array([9, 9])}, "experts_loaded differs"),
        ({"experts_used": np.array([9, 9])}, "experts_used differs"),
    ],
)
def test_check_compares_every_figure(change: dict[str, Any], message: str) -> None:
    solution = dataclasses.replace(evaluate(TREE, ROUTING, COST, [0, 1]), **change)
    with pytest.raises(InvalidInputError, match=message):
        solution.check(TREE, ROUTING, COST)


def test_check_notices_another_problem() -> None:
    solution = evaluate(TREE, ROUTING, COST, [0, 1])
    with pytest.raises(InvalidInputError, match="cycle_time is"):
        solution.check(TREE, ROUTING, COST.with_fixed_time(2.0))


def test_summary_and_dict() -> None:
    solution = evaluate(TREE, ROUTING, COST, [0, 1], method="by hand", stats={"steps": 2})
    text = solution.summary()
    assert "by hand: 2 of 4 nodes, feasible" in text
    assert "1.5000 per pass" in text
    assert "experts loaded   3 of 4 used" in text
    data = json.loads(json.dumps(solution.to_dict()))
    assert data["nodes"] == [0, 1]
    assert data["stats"] == {"steps": 2}
    assert data["status"] == "feasible"
    assert data["throughput"] == solution.throughput
    with_rate = evaluate(TREE, ROUTING, COST, [0, 1], rate=0.5)
    assert "surplus" in with_rate.summary()
    with_bound: Solution = dataclasses.replace(solution, bound=solution.throughput * 1.5, gap=0.5)
    assert "gap              at most 50 %" in with_bound.summary()
