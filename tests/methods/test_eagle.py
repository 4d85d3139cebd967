from __future__ import annotations

import hand_worked as hand
import numpy as np
import pytest
from hypothesis import given
from strategies import instances, size_limits

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    solve,
    solve_instance,
)


@pytest.mark.parametrize(
    ("budget", "nodes"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 3]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4])],
)
def test_top_n_by_path_probability(budget, nodes):
    solution = solve_instance(hand.tree(), method="eagle", budget=budget)
    assert solution.nodes.tolist() == nodes
    assert solution.stats["budget"] == budget


def test_default_budget_is_60_with_the_root():
    n = 80
    probability = np.concatenate(([1.0], np.linspace(0.9, 0.1, n - 1)))
    tree = DraftTree([-1] + [0] * (n - 1), probability)
    routing = ExpertRouting(np.zeros((n, 1, 1), dtype=np.int16), 1)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1), method="eagle")
    assert solution.nodes.tolist() == list(range(60))


def test_earlier_node_first_among_equals():
    tree = DraftTree([-1, 0, 0, 0], [1.0, 0.5, 0.75, 0.5])
    routing = ExpertRouting(np.zeros((4, 1, 1), dtype=np.int16), 1)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1), method="eagle", budget=3)
    assert solution.nodes.tolist() == [0, 1, 2]


def test_the_budget_covers_all_sequences_of_a_forest():
    assert solve_instance(hand.forest(), method="eagle", budget=4).nodes.tolist() == [0, 1, 3, 4]
    # Equal probabilities, 1 and 2: the parent is the earlier one.
    assert solve_instance(hand.forest(), method="eagle", budget=3).nodes.tolist() == [0, 3, 4]


def test_the_roots_are_always_run():
    assert solve_instance(hand.forest(), method="eagle", budget=1).nodes.tolist() == [0, 3]


def test_forbidden_size_is_cut_back_or_else_grown():
    cut = solve_instance(hand.tree(hand.only(1, 3, 5)), method="eagle", budget=4)
    assert cut.nodes.tolist() == [0, 1, 3]
    grown = solve_instance(hand.tree(hand.only(4, 5)), method="eagle", budget=2)
    assert grown.nodes.tolist() == [0, 1, 2, 3]


def test_max_nodes_cuts_the_budget():
    solution = solve_instance(hand.tree(), method="eagle", budget=5, max_nodes=2)
    assert solution.nodes.tolist() == [0, 1]


@pytest.mark.parametrize("budget", [0, -3, 2.5, "4", True, None])
def test_bad_budget(budget):
    with pytest.raises(
        InvalidInputError, match="option budget must be a whole number of at least 1"
    ):
        solve_instance(hand.tree(), method="eagle", budget=budget)


@given(instances().flatmap(lambda i: size_limits(i).map(lambda m: (i, m))))
def test_no_set_of_its_size_has_more_tokens(case):
    instance, max_nodes = case
    solution = solve_instance(instance, method="eagle", budget=5, max_nodes=max_nodes)
    tree = instance.tree
    rest = np.sort(tree.path_prob[tree.parent >= 0])[::-1]
    best = tree.n_roots + rest[: solution.n_selected - tree.n_roots].sum()
    assert solution.expected_tokens == pytest.approx(best)
