"""Laws that the optimum obeys, whatever the instance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import instances, rates, size_limits

from specfit_opt import CostModel, DraftTree, ExpertRouting, Instance, evaluate, solve_instance
from specfit_opt.kernel import pack

#: Node times under which closures nest and a larger tree is never at a disadvantage.
AFFINE = ("affine", "affine-table")


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def with_cost(instance, cost):
    return Instance(instance.tree, instance.routing, cost)


@given(st.data())
def test_solution_is_closed_and_true_to_its_figures(data):
    instance = data.draw(instances())
    limit = data.draw(size_limits(instance))
    solution = solve_instance(instance, max_nodes=limit)
    solution.check(instance.tree, instance.routing, instance.cost_model)
    assert limit is None or solution.n_selected <= limit
    assert solution.bound >= solution.objective


@given(instances(), st.sampled_from([2.0**-10, 0.5, 8.0, 1000.0]))
def test_scaling_every_time_divides_the_ratio(instance, factor):
    cost = instance.cost_model
    scaled = CostModel(
        cost.fixed_time * factor,
        np.multiply(cost.node_time, factor),
        np.multiply(cost.expert_time, factor),
        cost.resident_time * factor,
    )
    before = solve_instance(instance)
    after = solve_instance(with_cost(instance, scaled))
    assert after.throughput * factor == close(before.throughput)


@given(instances(), st.randoms(use_true_random=False))
def test_names_of_experts_do_not_matter(instance, random):
    routing = instance.routing
    experts = routing.experts.copy()
    resident = np.empty_like(routing.resident)
    table = instance.cost_model.expert_table(routing.n_layers, routing.n_experts)
    renamed_table = np.empty_like(table)
    for layer in range(routing.n_layers):
        names = list(range(routing.n_experts))
        random.shuffle(names)
        new = np.array([*names, -1])  # the last entry serves the padding, -1
        experts[:, layer] = new[experts[:, layer]]
        resident[layer, names] = routing.resident[layer]
        renamed_table[layer, names] = table[layer]
    cost = instance.cost_model
    renamed = Instance(
        instance.tree,
        ExpertRouting(experts, routing.n_experts, resident),
        CostModel(cost.fixed_time, cost.node_time, renamed_table, cost.resident_time),
    )
    assert solve_instance(renamed).throughput == close(solve_instance(instance).throughput)


@given(instances(kinds=(*AFFINE, "concave", "convex")))
def test_a_leaf_without_probability_is_never_chosen_where_nodes_take_time(instance):
    rising = np.diff(instance.cost_model.node_table(instance.tree.n_nodes)[1:])
    assume((rising > 0).all())
    solution = solve_instance(instance)
    chosen = solution.mask & (instance.tree.path_prob == 0.0) & (instance.tree.parent >= 0)
    assert not chosen.any()


@given(instances(), st.data())
def test_residents_never_lower_the_optimum(instance, data):
    routing, cost = instance.routing, instance.cost_model
    table = cost.expert_table(routing.n_layers, routing.n_experts)
    dearer = table >= cost.resident_time  # a resident expert that costs more can do harm
    more = routing.resident.copy()
    for layer, expert in data.draw(
        st.sets(
            st.tuples(st.integers(0, routing.n_layers - 1), st.integers(0, routing.n_experts - 1)),
            max_size=10,
        )
    ):
        more[layer, expert] |= dearer[layer, expert]
    fuller = Instance(instance.tree, routing.with_resident(more), cost)
    before, after = solve_instance(instance).throughput, solve_instance(fuller).throughput
    assert after >= before * (1 - 1e-9)


@given(instances(kinds=AFFINE), rates(), rates())
def test_closures_nest_as_the_rate_rises(instance, first, second):
    low, high = sorted((first, second))
    larger = solve_instance(instance, rate=low).mask
    smaller = solve_instance(instance, rate=high).mask
    assert not (smaller & ~larger).any()


@given(instances())
def test_the_ratio_is_where_the_surplus_vanishes(instance):
    best = solve_instance(instance)
    at_best = solve_instance(instance, rate=best.throughput)
    assert at_best.objective == pytest.approx(0.0, abs=1e-9 * best.expected_tokens)


@given(instances(), st.data())
def test_no_closed_set_is_better(instance, data):
    best = solve_instance(instance)
    tree = instance.tree
    chosen = set(tree.roots.tolist())
    for v in range(tree.n_nodes):
        if int(tree.parent[v]) in chosen and data.draw(st.booleans()):
            chosen.add(v)
    if np.isfinite(instance.cost_model.node_table(tree.n_nodes)[len(chosen)]):
        other = evaluate(tree, instance.routing, instance.cost_model, sorted(chosen))
        assert other.throughput <= best.throughput * (1 + 1e-9)


@given(instances(kinds=AFFINE), st.data())
def test_a_larger_tree_is_never_worse(instance, data):
    tree, routing = instance.tree, instance.routing
    parent = data.draw(st.integers(0, tree.n_nodes - 1))
    prob = float(tree.path_prob[parent]) * data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    cost = instance.cost_model
    slope = float(cost.node_table(tree.n_nodes)[1])
    grown = Instance(
        DraftTree([*tree.parent, parent], [*tree.path_prob, prob]),
        ExpertRouting(
            np.concatenate([routing.experts, routing.experts[:1]]),
            routing.n_experts,
            routing.resident,
        ),
        CostModel(cost.fixed_time, slope, cost.expert_time, cost.resident_time),
    )
    before, after = solve_instance(instance).throughput, solve_instance(grown).throughput
    assert after >= before * (1 - 1e-9)


@given(st.data())
def test_packing_sets_one_bit_per_expert(data):
    n, layers, k = (data.draw(st.integers(1, 4)) for _ in range(3))
    n_experts = data.draw(st.sampled_from([1, 7, 63, 64, 65, 130]))
    flat = data.draw(
        st.lists(st.integers(-1, n_experts - 1), min_size=n * layers * k, max_size=n * layers * k)
    )
    dtype = data.draw(st.sampled_from([np.int16, np.int32, np.int64]))
    experts = np.array(flat, dtype=dtype).reshape(n, layers, k)
    rows, bad = pack(experts, n_experts)
    assert bad == -1
    words = -(-n_experts // 64)
    for v in range(n):
        for layer in range(layers):
            bits = int.from_bytes(rows[v, layer * words : (layer + 1) * words].tobytes(), "little")
            used = {i for i in range(64 * words) if bits >> i & 1}
            assert used == set(experts[v, layer].tolist()) - {-1}
