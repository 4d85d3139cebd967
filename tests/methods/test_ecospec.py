from __future__ import annotations

import math

import hand_worked as hand
import numpy as np
import pytest
from strategies import random_instance

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
    [(0, [0]), (1, [0, 1]), (2, [0, 1, 3]), (3, [0, 1, 2, 3]), (4, [0, 1, 2, 3, 4])],
)
def test_order_of_addition_by_hand(budget, nodes):
    # 1: 0.8/3, 2: 0.5/2, 3 by way of 1: 0.6/3, 4 by way of 2: 0.25/2; then 3: 0.6/1; then 2.
    solution = solve_instance(hand.tree(), method="ecospec", budget=budget)
    assert solution.nodes.tolist() == nodes
    assert solution.stats == {"budget": budget, "eps": 1.0}


def test_default_budget_is_four_draft_nodes():
    assert solve_instance(hand.tree(), method="ecospec").n_selected == 5
    n = 20
    tree = DraftTree([-1] + [0] * (n - 1), [1.0] + [0.5] * (n - 1))
    routing = ExpertRouting(np.zeros((n, 1, 1), dtype=np.int16), 1)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1), method="ecospec")
    assert solution.nodes.tolist() == [0, 1, 2, 3, 4]  # equal scores: the earlier first


def test_eps_weighs_the_count():
    # 1: 0.8/2.1 = 0.381, 2: 0.5/1.1 = 0.455
    solution = solve_instance(hand.tree(), method="ecospec", budget=1, eps=0.1)
    assert solution.nodes.tolist() == [0, 2]


def test_residents_count_too():
    solution = solve_instance(hand.tree(resident=[3]), method="ecospec", budget=1)
    assert solution.nodes.tolist() == [0, 1]  # though node 2 has nothing to load


@pytest.mark.parametrize("seed", range(40))
def test_against_the_rule_over_whole_paths(seed):
    """Score every path from the chosen set, of any length, by sets of expert ids."""
    rng = np.random.default_rng(seed)
    instance = random_instance(rng, kind="affine", n_roots=int(rng.integers(1, 3)), n=10)
    tree, routing = instance.tree, instance.routing
    uses = [
        {(j, e) for j, slots in enumerate(node) for e in slots if e >= 0}
        for node in routing.experts.tolist()
    ]
    chosen = tree.roots.tolist()
    while len(chosen) < min(tree.n_roots + 4, tree.n_nodes):
        active = set().union(*(uses[v] for v in chosen))
        scores = {}
        for v in set(range(tree.n_nodes)) - set(chosen):
            fresh = set().union(*(uses[u] for u in tree.path(v))) - active
            scores[v] = tree.path_prob[v] / (len(fresh) + 1.0)
        best = max(scores, key=lambda v: (scores[v], -v))
        chosen += [u for u in tree.path(best) if u not in chosen]
    solution = solve_instance(instance, method="ecospec")
    assert solution.nodes.tolist() == sorted(chosen)


def test_forest_by_hand():
    # 4: 0.9/2, 1: 0.5/2, 5: 0.25/1; then 1: 0.5/1, which shares 4's expert.
    nodes = [
        solve_instance(hand.forest(), method="ecospec", budget=b).nodes.tolist() for b in (0, 1, 2)
    ]
    assert nodes == [[0, 3], [0, 3, 4], [0, 1, 3, 4]]


def test_forbidden_size_is_cut_back_in_the_order_of_addition():
    solution = solve_instance(hand.tree(hand.only(1, 2, 5)), method="ecospec", budget=2)
    assert solution.nodes.tolist() == [0, 1]


def test_grows_by_its_own_rule_where_nothing_smaller_is_allowed():
    solution = solve_instance(hand.tree(hand.only(4, 5)), method="ecospec", budget=2)
    assert solution.nodes.tolist() == [0, 1, 2, 3]


def test_max_nodes_cuts_back():
    solution = solve_instance(hand.tree(), method="ecospec", max_nodes=2)
    assert solution.nodes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": -1}, "option budget must be a whole number of at least 0, got -1"),
        ({"budget": 1.5}, "option budget must be a whole number"),
        ({"count": "missing"}, "method 'ecospec' has no option 'count'"),
        ({"eps": 0.0}, "option eps must be a finite number of at least 1e-12 .*, got 0.0"),
        ({"eps": math.nan}, "option eps must be a finite number"),
        ({"eps": "x"}, "option eps must be a finite number .*, got 'x'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidInputError, match=message):
        solve_instance(hand.tree(), method="ecospec", **options)
