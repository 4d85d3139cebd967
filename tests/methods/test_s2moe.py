from __future__ import annotations

import math

import hand_worked as hand
import numpy as np
import pytest
from strategies import random_instance

from specfit_opt import InvalidInputError, solve_instance


@pytest.mark.parametrize(
    ("step", "draft", "nodes"),
    [
        (2.1, 0.1, [0]),
        (2.3, 0.1, [0, 2, 4]),
        (2.7, 0.1, [0, 1, 2, 3, 4]),
        (3.5, 0.9, [0]),
        (3.7, 0.9, [0, 1, 3]),
        (3.9, 0.9, [0, 1, 2, 3, 4]),
    ],
)
def test_what_a_step_is_worth_by_hand(step, draft, nodes):
    # An expert takes 1. New are two with node 1, one with 2, none with 3 and 4 after their parents:
    # 1 pays from 0.8 T = d + 2 on, 2 from 0.5 T = d + 1, 3 from 0.6 T = d, 4 from 0.25 T = d.
    solution = solve_instance(
        hand.tree(), method="s2moe", step_time=step, new_expert_time=1.0, draft_time=draft
    )
    assert solution.nodes.tolist() == nodes
    assert solution.stats == {"step_time": step, "new_expert_time": 1.0, "draft_time": draft}


def test_residents_are_priced_like_the_others():
    options = {"step_time": 1.9, "new_expert_time": 1.0}
    everything = solve_instance(hand.tree(), method="s2moe", **options).nodes.tolist()
    resident = solve_instance(hand.tree(resident=[3]), method="s2moe", **options)
    assert resident.nodes.tolist() == everything


def test_prices_when_none_are_given():
    instance = hand.tree(resident=[3])
    cost = instance.cost_model
    n_experts = instance.routing.n_experts
    mean = float(cost.expert_table(1, n_experts).mean())
    mean += (cost.resident_time - mean) / n_experts
    stats = solve_instance(instance, method="s2moe").stats
    assert stats["new_expert_time"] == pytest.approx(mean)
    used = np.count_nonzero(instance.routing.experts >= 0) / instance.tree.n_nodes
    one = cost.fixed_time + float(cost.node_table(1)[1])
    assert stats["step_time"] == pytest.approx(one + used * mean)


@pytest.mark.parametrize("seed", range(40))
def test_against_the_rule_in_any_order(seed):
    """Add whatever pays, in random order, by sets of expert ids: the set is the same."""
    rng = np.random.default_rng(seed)
    instance = random_instance(rng, kind="affine", n_roots=int(rng.integers(1, 3)), n=10)
    tree, routing = instance.tree, instance.routing
    uses = [
        {(j, e) for j, slots in enumerate(node) for e in slots if e >= 0}
        for node in routing.experts.tolist()
    ]
    step, expert, draft = rng.random(3) * (4.0, 0.5, 0.2)
    chosen = set(tree.roots.tolist())
    while True:
        active = set().union(*(uses[v] for v in chosen))
        pays = [
            v
            for v in range(tree.n_nodes)
            if v not in chosen
            and tree.parent[v] in chosen
            and tree.path_prob[v] * step > draft + expert * len(uses[v] - active)
        ]
        if not pays:
            break
        chosen.add(int(rng.choice(pays)))
    solution = solve_instance(
        instance, method="s2moe", step_time=step, new_expert_time=expert, draft_time=draft
    )
    assert solution.nodes.tolist() == sorted(chosen)


def test_sizes_that_are_not_allowed():
    options = {"step_time": 9.0, "new_expert_time": 1.0}
    cut = solve_instance(hand.tree(hand.only(1, 2, 3)), method="s2moe", **options)
    assert cut.n_selected == 3
    options["step_time"] = 0.0
    grown = solve_instance(hand.tree(hand.only(4, 5)), method="s2moe", **options)
    assert grown.n_selected == 4


@pytest.mark.parametrize("option", ["step_time", "new_expert_time", "draft_time"])
def test_bad_options(option):
    for value in (-1.0, math.inf, math.nan, "x"):
        with pytest.raises(InvalidInputError, match=f"option {option} must be a finite number"):
            solve_instance(hand.tree(), method="s2moe", **{option: value})
