from __future__ import annotations

import itertools

import hand_worked as hand
import numpy as np
import pytest
from strategies import random_instance, random_max_nodes, random_rate

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    Status,
    evaluate,
    solve,
    solve_instance,
)


def test_optimum_by_hand():
    solution = solve_instance(hand.tree(), method="brute")
    assert solution.nodes.tolist() == [0, 1, 3]
    assert solution.throughput == pytest.approx(2.4 / 4.75)
    assert solution.status is Status.OPTIMAL
    assert solution.bound == solution.objective
    assert solution.gap == 0.0
    # 1, 3 below it or not; 2, 4 below it or not: three times three.
    assert solution.stats["sets"] == 9


def test_forest_by_hand():
    solution = solve_instance(hand.forest(), method="brute")
    assert solution.nodes.tolist() == [0, 1, 3, 4, 5]
    assert solution.throughput == pytest.approx(3.65 / 4.25)


@pytest.mark.parametrize(
    ("sizes", "nodes"),
    [((1, 2, 4, 5), [0, 1, 2, 3, 4]), ((1, 2, 4), [0, 1, 2, 3]), ((2,), [0, 2])],
)
def test_forbidden_sizes_by_hand(sizes, nodes):
    assert solve_instance(hand.tree(hand.only(*sizes)), method="brute").nodes.tolist() == nodes


def test_max_nodes():
    solution = solve_instance(hand.tree(), method="brute", max_nodes=2)
    assert solution.nodes.tolist() == [0]


def test_surplus_by_hand():
    solution = solve_instance(hand.tree(), method="brute", rate=0.45)
    assert solution.n_selected == 5  # 3.15 - 2.8125, against 2.4 - 2.1375
    assert solution.objective == pytest.approx(0.3375)
    # At 0.5 both are worth 0.025: the fewest nodes.
    solution = solve_instance(hand.tree(), method="brute", rate=0.5)
    assert solution.nodes.tolist() == [0, 1, 3]
    assert solution.objective == pytest.approx(0.025)
    assert solution.gap == 0.0


def naive(instance, rate, max_nodes):
    """Try every subset of the nodes, by the definition of the objective alone."""
    tree = instance.tree
    best = None
    free = [v for v in range(tree.n_nodes) if tree.parent[v] >= 0]
    for k in range(len(free) + 1):
        for extra in itertools.combinations(free, k):
            nodes = sorted([*tree.roots.tolist(), *extra])
            if max_nodes is not None and len(nodes) > max_nodes:
                continue
            try:
                value = evaluate(
                    tree, instance.routing, instance.cost_model, nodes, rate=rate
                ).objective
            except InvalidInputError:  # not closed, or a forbidden size
                continue
            # Sizes rise, and within a size combinations come in lexicographic order.
            if best is None or value > best[0] + 1e-12 * max(1.0, abs(best[0])):
                best = (value, nodes)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_against_all_subsets(seed):
    rng = np.random.default_rng(seed)
    instance = random_instance(rng, n=int(rng.integers(1, 8)))
    max_nodes = random_max_nodes(rng, instance)
    rate = random_rate(rng, instance) if seed % 2 else None
    solution = solve_instance(instance, method="brute", rate=rate, max_nodes=max_nodes)
    value, nodes = naive(instance, rate, max_nodes)
    assert solution.objective == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert solution.nodes.tolist() == nodes


def test_fewest_nodes_then_lexicographically_smallest_among_equals():
    # Any two of three like nodes are worth as much as any other two; a node of probability 0 that
    # costs nothing changes nothing.
    tree = DraftTree([-1, 0, 0, 0, 0], [1.0, 0.0, 0.5, 0.5, 0.5])
    routing = ExpertRouting([[[0]]] * 5, n_experts=1)
    table = [0.0, 1.0, 1.0, 1.0, np.inf, np.inf]
    solution = solve(tree, routing, CostModel(1.0, table, 1.0), method="brute")
    assert solution.nodes.tolist() == [0, 2, 3]
    table = [0.0, 1.0, 4.0, 4.0, np.inf, np.inf]
    solution = solve(tree, routing, CostModel(1.0, table, 1.0), method="brute")
    assert solution.nodes.tolist() == [0]


def test_blocks_and_many_roots():
    # 17 free nodes make more than one block; 70 roots more than a machine word has bits.
    n_roots, n_free = 70, 17
    rng = np.random.default_rng(5)
    tree = DraftTree(
        [-1] * n_roots + list(range(n_free)),
        np.concatenate((np.ones(n_roots), rng.random(n_free))),
    )
    routing = ExpertRouting(rng.integers(0, 40, (n_roots + n_free, 1, 1)), 200)
    cost = CostModel(1.0, 0.01, 0.0)
    solution = solve(tree, routing, cost, method="brute")
    # Without a price on experts the best prefix by probability is optimal.
    prefix = solve(tree, routing, cost, method="evict")
    assert solution.stats["sets"] == 2**n_free
    assert solution.throughput == pytest.approx(prefix.throughput, rel=1e-12)


def test_time_limit_without_a_proof():
    n_free = 18
    tree = DraftTree([-1] + [0] * n_free, [1.0] + [0.5] * n_free)
    routing = ExpertRouting(np.arange(n_free + 1).reshape(-1, 1, 1), n_free + 1)
    cost = CostModel(1.0, 0.1, 0.1)
    solution = solve(tree, routing, cost, method="brute", time_limit=1e-9)
    assert solution.status is Status.FEASIBLE
    assert solution.bound is None
    assert 0 < solution.stats["sets"] < 2**n_free


def test_refuses_large_trees():
    n = 24
    tree = DraftTree([-1, *range(n - 1)], [1.0] * n)
    routing = ExpertRouting(np.zeros((n, 1, 1), dtype=np.int16), 1)
    cost = CostModel(1.0, 0.1, 0.1)
    with pytest.raises(InvalidInputError, match=r"23 nodes besides its roots.*max_tree = 22"):
        solve(tree, routing, cost, method="brute")
    # A chain has only as many closed sets as nodes.
    solution = solve(tree, routing, cost, method="brute", max_tree=23)
    assert solution.n_selected == n
    assert solution.stats["sets"] == n


@pytest.mark.parametrize("value", [-1, 27, 2.0, "3"])
def test_bad_max_tree(value):
    with pytest.raises(
        InvalidInputError, match="option max_tree must be a whole number from 0 to 26"
    ):
        solve_instance(hand.tree(), method="brute", max_tree=value)
