from __future__ import annotations

import itertools
import math

import hand_worked as hand
import numpy as np
import pytest
from strategies import random_instance

from specfit_opt import CostModel, ExpertRouting, Instance, InvalidInputError, solve_instance
from specfit_opt.methods.evict import mean_pass_time


def test_mean_pass_time_by_hand():
    # Users: expert 0 two, 1 two, 2 one, 3 two. For m = 2 an expert of two users is missed with
    # probability C(3, 2) / C(5, 2) = 0.3, one of a single user with 0.6.
    time = mean_pass_time(hand.tree())
    assert time[1:] == pytest.approx([2.65, 4.0, 5.05, 5.8, 6.25])


def test_best_prefix_by_hand():
    # P / C: 0.377, 0.45, 0.475, 0.5, 0.504
    solution = solve_instance(hand.tree(), method="evict")
    assert solution.nodes.tolist() == [0, 1, 2, 3, 4]
    assert solution.throughput == pytest.approx(3.15 / 6.25)
    assert solution.stats["pass_time"] == "estimated"


@pytest.mark.parametrize(("rate", "nodes"), [(0.4, [0, 1, 2, 3, 4]), (0.6, [0, 1, 2, 3])])
def test_surplus_by_hand(rate, nodes):
    # At 0.6, P - 0.6 C: -0.59, -0.6, -0.63, -0.58, -0.6
    assert solve_instance(hand.tree(), method="evict", rate=rate).nodes.tolist() == nodes


def test_given_profile():
    # P / C: 1, 1.2, 0.6, 0.58, 0.525
    profile = [math.nan, 1.0, 1.5, 4.0, 5.0, 6.0, 7.0]
    solution = solve_instance(hand.tree(), method="evict", pass_time=profile)
    assert solution.nodes.tolist() == [0, 1]
    assert solution.stats["pass_time"] == "given"


def test_shortest_prefix_among_equals():
    profile = [0.0, 1.0, 1.8, 2.4, 2.9, 3.15]  # every ratio is 1, exactly: C is P, bit by bit
    tokens = np.cumsum([1.0, 0.8, 0.6, 0.5, 0.25])
    profile[1:] = tokens.tolist()
    assert solve_instance(hand.tree(), method="evict", pass_time=profile).nodes.tolist() == [0]


def test_forest():
    profile = [9.0, 9.0, 2.5, 2.6, 4.0, 5.0, 6.0]  # P: -, -, 2, 2.9, 3.4, 3.9, 4.15
    solution = solve_instance(hand.forest(), method="evict", pass_time=profile)
    assert solution.nodes.tolist() == [0, 3, 4]


def test_only_allowed_sizes_are_considered():
    assert solve_instance(hand.tree(hand.only(1, 3)), method="evict").nodes.tolist() == [0, 1, 3]
    solution = solve_instance(hand.tree(hand.only(4, 5)), method="evict", max_nodes=4)
    assert solution.nodes.tolist() == [0, 1, 2, 3]
    solution = solve_instance(hand.tree(), method="evict", max_nodes=2)
    assert solution.nodes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ([0.0, 1.0, 2.0], r"shape \(3,\) but the tree has 5 nodes"),
        ([[1.0] * 6], r"shape \(1, 6\)"),
        ([0.0, 1.0, math.nan, 1.0, 1.0, 1.0], r"pass_time\[2\] = nan"),
        ([0.0, 1.0, 1.0, -1.0, 1.0, 1.0], r"pass_time\[3\] = -1.0"),
        ([0.0, 1.0, 1.0, 1.0, math.inf, 1.0], r"pass_time\[4\] = inf"),
        ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], r"pass_time\[1\] = 0.0"),
        (["a"] * 6, "must hold real numbers"),
    ],
)
def test_bad_profile(profile, message):
    with pytest.raises(InvalidInputError, match=message):
        solve_instance(hand.tree(), method="evict", pass_time=profile)


@pytest.mark.parametrize("seed", range(20))
def test_mean_pass_time_is_the_mean_over_all_sets_of_a_size(seed):
    instance = random_instance(np.random.default_rng(seed), kind="affine", n=7)
    routing, cost = instance.routing, instance.cost_model
    price = np.where(
        routing.resident,
        cost.resident_time,
        cost.expert_table(routing.n_layers, routing.n_experts),
    )
    uses = [
        {(j, e) for j, slots in enumerate(node) for e in slots if e >= 0}
        for node in routing.experts.tolist()
    ]
    time = mean_pass_time(instance)
    for m in range(1, 8):
        sums = [
            sum(price[pair] for pair in set().union(*group))
            for group in itertools.combinations(uses, m)
        ]
        expected = cost.fixed_time + cost.node_table(7)[m] + np.mean(sums)
        assert time[m] == pytest.approx(expected)


def test_blind_to_which_experts_a_node_uses():
    # Trade the experts of two nodes: the profile, and so the choice, stay as they are.
    instance = hand.tree()
    experts = instance.routing.experts.copy()
    experts[[3, 4]] = experts[[4, 3]]
    traded = Instance(instance.tree, ExpertRouting(experts, 4), CostModel(1.0, 0.25, 1.0))
    assert mean_pass_time(traded) == pytest.approx(mean_pass_time(instance))
    ours, theirs = (solve_instance(i, method="evict", max_nodes=3) for i in (instance, traded))
    assert ours.nodes.tolist() == theirs.nodes.tolist() == [0, 1, 3]
    assert ours.throughput != pytest.approx(theirs.throughput)
