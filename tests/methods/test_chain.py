from __future__ import annotations

import hand_worked as hand
import numpy as np
import pytest
from strategies import random_instance, random_max_nodes, random_rate

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    solve,
    solve_instance,
)
from specfit_opt.solution import evaluate


def test_best_path_by_hand():
    solution = solve_instance(hand.tree(), method="chain")
    assert solution.nodes.tolist() == [0, 1, 3]
    assert solution.throughput == pytest.approx(2.4 / 4.75)


@pytest.mark.parametrize(
    ("length", "nodes"), [(0, [0]), (1, [0, 1]), (2, [0, 1, 3]), (9, [0, 1, 3])]
)
def test_fixed_length_follows_the_most_probable_child(length, nodes):
    solution = solve_instance(hand.tree(), method="chain", length=length)
    assert solution.nodes.tolist() == nodes
    assert solution.stats == {"length": length}


def test_fixed_length_takes_the_earlier_child_among_equals():
    tree = DraftTree([-1, 0, 0, 2], [1.0, 0.5, 0.5, 0.5])
    routing = ExpertRouting(np.zeros((4, 1, 1), dtype=np.int16), 1)
    solution = solve(tree, routing, CostModel(1.0, 0.1, 0.1), method="chain", length=3)
    assert solution.nodes.tolist() == [0, 1]


def test_surplus_by_hand():
    # At 0.5: {0} -0.125, {0,1} -0.45, {0,2} -0.25, {0,1,3} 0.025, {0,2,4} -0.125
    solution = solve_instance(hand.tree(), method="chain", rate=0.5)
    assert solution.nodes.tolist() == [0, 1, 3]
    assert solution.objective == pytest.approx(0.025)
    assert solve_instance(hand.tree(), method="chain", rate=0.6).nodes.tolist() == [0]


def test_forest_is_a_local_optimum():
    # Changing one path at a time finds 5, never 1 and 4 together (0.85).
    solution = solve_instance(hand.forest(), method="chain")
    assert solution.nodes.tolist() == [0, 3, 5]
    assert solution.throughput == pytest.approx(2.25 / 2.75)


def test_forest_of_fixed_length():
    solution = solve_instance(hand.forest(), method="chain", length=1)
    assert solution.nodes.tolist() == [0, 1, 3, 4]
    assert solution.throughput == pytest.approx(0.85)
    assert solve_instance(hand.forest(), method="chain", length=2).n_selected == 5


@pytest.mark.parametrize(
    ("sizes", "nodes"),
    [
        ((1, 2, 4, 5), [0]),  # 0.444 beats {0,2}
        ((2, 4, 5), [0, 2]),  # 1.5/3.5 beats 1.8/4.5
        ((4,), [0, 1, 2, 3]),  # no path is that long: the walk 0-1-3, then 2
    ],
)
def test_best_path_of_an_allowed_size(sizes, nodes):
    solution = solve_instance(hand.tree(hand.only(*sizes)), method="chain")
    assert solution.nodes.tolist() == nodes


@pytest.mark.parametrize(
    ("length", "sizes", "nodes"),
    [
        (2, (1, 2, 5), [0, 1]),
        (0, (2, 3), [0, 1]),
        (1, (4,), [0, 1, 2, 3]),
    ],
)
def test_fixed_length_keeps_to_allowed_sizes(length, sizes, nodes):
    solution = solve_instance(hand.tree(hand.only(*sizes)), method="chain", length=length)
    assert solution.nodes.tolist() == nodes


def test_forest_whose_allowed_sizes_need_several_paths():
    # Both walks, 0-1-2 and 3-4, are needed for 5 nodes, and 6 is more than they have.
    assert solve_instance(hand.forest(hand.only(5)), method="chain").nodes.tolist() == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    assert solve_instance(hand.forest(hand.only(6)), method="chain").n_selected == 6


def test_forest_cut_back_level_by_level():
    # Length 2 gives 0-1-2 and 3-4; level by level: 0 3 | 1 4 | 2.
    solution = solve_instance(hand.forest(hand.only(2, 3, 4)), method="chain", length=2)
    assert solution.nodes.tolist() == [0, 1, 3, 4]
    solution = solve_instance(hand.forest(hand.only(2, 3)), method="chain", length=2)
    assert solution.nodes.tolist() == [0, 1, 3]


def test_max_nodes():
    solution = solve_instance(hand.tree(), method="chain", max_nodes=2)
    assert solution.nodes.tolist() == [0]
    solution = solve_instance(hand.tree(), method="chain", length=2, max_nodes=2)
    assert solution.nodes.tolist() == [0, 1]


@pytest.mark.parametrize("length", [-1, 1.0, "2", False])
def test_bad_length(length):
    with pytest.raises(
        InvalidInputError, match="option length must be a whole number of at least 0"
    ):
        solve_instance(hand.tree(), method="chain", length=length)


@pytest.mark.parametrize("seed", range(60))
def test_best_of_all_paths_of_a_tree(seed):
    rng = np.random.default_rng(seed)
    instance = random_instance(rng, n_roots=1)
    max_nodes, rate = random_max_nodes(rng, instance), random_rate(rng, instance)
    rate = rate if seed % 2 else None
    tree = instance.tree
    parts = (tree, instance.routing, instance.cost_model)
    table = instance.cost_model.node_table(tree.n_nodes)
    paths = [tree.path(v) for v in range(tree.n_nodes)]
    values = [
        evaluate(*parts, path, rate=rate).objective
        for path in paths
        if np.isfinite(table[len(path)]) and (max_nodes is None or len(path) <= max_nodes)
    ]
    solution = solve_instance(instance, method="chain", rate=rate, max_nodes=max_nodes)
    if values:
        assert solution.objective == pytest.approx(max(values), rel=1e-9, abs=1e-9)
    else:
        assert solution.n_selected > int(tree.depth.max()) or max_nodes is not None


@pytest.mark.parametrize("seed", range(30))
def test_one_path_per_root(seed):
    instance = random_instance(np.random.default_rng(seed), kind="affine", n_roots=3, n=10)
    solution = solve_instance(instance, method="chain")
    tree = instance.tree
    children = np.bincount(tree.parent[solution.mask & (tree.parent >= 0)], minlength=10)
    assert children.max() <= 1
    # No other path of one root improves on it.
    ends = [int(v) for v in solution.nodes if children[v] == 0]
    for end in ends:
        rest = [v for other in ends if other != end for v in tree.path(other)]
        for v in range(tree.n_nodes):
            if tree.path(v)[0] == tree.path(end)[0]:
                other = evaluate(
                    tree, instance.routing, instance.cost_model, [*rest, *tree.path(v)]
                )
                assert other.throughput <= solution.throughput * (1 + 1e-9)
