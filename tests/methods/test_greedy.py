from __future__ import annotations

import hand_worked as hand
import numpy as np
import pytest
from hypothesis import given
from strategies import instances

from specfit_opt import CostModel, DraftTree, ExpertRouting, evaluate, solve, solve_instance


def test_stops_where_only_a_pair_would_pay():
    solution = solve_instance(hand.tree(), method="greedy")
    assert solution.nodes.tolist() == [0]
    assert solution.stats == {"steps": 0, "stopped": "no improvement"}
    assert solution.throughput == pytest.approx(1 / 2.25)


@pytest.mark.parametrize(
    ("rate", "nodes"),
    [
        (0.2, [0, 1, 2, 3, 4]),  # 1 (+0.35), 3, 2, 4 (+0.2)
        (0.35, [0, 1, 2, 3, 4]),  # 2 (+0.0625) before 1 (+0.0125)
        (0.45, [0]),  # neither 1 (-0.2125) nor 2 (-0.0625)
    ],
)
def test_surplus_by_hand(rate, nodes):
    solution = solve_instance(hand.tree(), method="greedy", rate=rate)
    assert solution.nodes.tolist() == nodes


def test_whole_tree_when_everything_pays():
    solution = solve_instance(hand.tree(), method="greedy", rate=0.0)
    assert solution.n_selected == 5
    assert solution.stats["stopped"] == "whole tree"


def test_forest_by_hand():
    # 5 alone helps; after it neither 1 nor 4 does, though both together would.
    solution = solve_instance(hand.forest(), method="greedy")
    assert solution.nodes.tolist() == [0, 3, 5]
    assert solution.throughput == pytest.approx(2.25 / 2.75)


def test_grows_to_the_smallest_allowed_size_first():
    # With one node forbidden: 2 (1.5/3.5) before 1 (1.8/4.5), then 4, then nothing helps.
    solution = solve_instance(hand.tree(hand.only(2, 3, 4, 5)), method="greedy")
    assert solution.nodes.tolist() == [0, 2, 4]
    # With only 4 allowed, the way there goes over 2 (0.375), 4 (0.4375) and 1.
    solution = solve_instance(hand.tree(hand.only(4)), method="greedy")
    assert solution.nodes.tolist() == [0, 1, 2, 4]


def test_does_not_look_behind_a_forbidden_size():
    solution = solve_instance(hand.tree(hand.only(1, 3)), method="greedy", rate=0.0)
    assert solution.nodes.tolist() == [0]
    assert solution.stats["stopped"] == "size not allowed"


def test_max_nodes():
    solution = solve_instance(hand.tree(), method="greedy", rate=0.0, max_nodes=3)
    assert solution.nodes.tolist() == [0, 1, 3]


def test_earlier_node_among_equals():
    tree = DraftTree([-1, 0, 0], [1.0, 0.5, 0.5])
    routing = ExpertRouting(np.zeros((3, 1, 1), dtype=np.int16), 1)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1), method="greedy", max_nodes=2)
    assert solution.nodes.tolist() == [0, 1]


def test_time_limit_ends_the_search():
    solution = solve_instance(hand.tree(), method="greedy", rate=0.0, time_limit=1e-12)
    assert solution.nodes.tolist() == [0]
    assert solution.stats["stopped"] == "time_limit"


@given(instances(kinds=["affine"]))
def test_no_single_node_improves_the_result(instance):
    solution = solve_instance(instance, method="greedy")
    tree = instance.tree
    for v, u in enumerate(tree.parent.tolist()):
        if u >= 0 and solution.mask[u] and not solution.mask[v]:
            wider = evaluate(
                tree, instance.routing, instance.cost_model, [*solution.nodes.tolist(), v]
            )
            assert wider.throughput <= solution.throughput * (1 + 1e-12)
