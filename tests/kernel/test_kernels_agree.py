"""The compiled kernel against its pure-Python twin, function by function."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import KINDS, instances, random_instance

from specfit_opt import kernel
from specfit_opt.kernel import twin

compiled = pytest.importorskip(
    "specfit_opt.kernel._kernel", reason="the compiled kernel was not built"
)


def price_arguments(instance):
    routing, cost = instance.routing, instance.cost_model
    return (
        routing.resident,
        cost.kernel_expert_time(routing.n_layers, routing.n_experts),
        cost.resident_time,
    )


def question(instance, rate=math.nan, time_limit=math.inf):
    cost = instance.cost_model
    return cost.fixed_time, cost.node_time, rate, instance.tree.n_nodes, time_limit


def test_same_names_and_signatures():
    for name in set(kernel.__all__) - {"VARIABLE"}:
        assert hasattr(compiled, name)
        assert hasattr(twin, name)
    methods = {name for name in vars(twin.TreeState) if not name.startswith("_")}
    assert methods - {"extend_rows"} <= set(dir(compiled.TreeState))
    assert (compiled.NAME, twin.NAME) == ("cython", "python")


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
@pytest.mark.parametrize("n_experts", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("slots", [0, 1, 9])
def test_pack(dtype, n_experts, slots):
    rng = np.random.default_rng(n_experts)
    experts = rng.integers(-1, n_experts, (5, 3, slots)).astype(dtype)
    ours, theirs = compiled.pack(experts, n_experts), twin.pack(experts, n_experts)
    assert ours[1] == theirs[1] == -1
    assert np.array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("bad", [-2, 64, 1000, -32768, 32767])
def test_pack_finds_the_first_bad_id(bad):
    experts = np.zeros((3, 2, 4), dtype=np.int16)
    experts[1, 1, 2] = experts[2, 0, 0] = bad
    where = np.ravel_multi_index((1, 1, 2), experts.shape)
    assert compiled.pack(experts, 64)[1] == twin.pack(experts, 64)[1] == where


@given(instances(), st.data())
def test_evaluate(instance, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=1)), dtype=np.bool_)
    mask = np.resize(mask, instance.tree.n_nodes)
    mask[0] = True
    arguments = (mask, instance.tree.path_prob, instance.routing.rows, *price_arguments(instance))
    ours, theirs = compiled.evaluate(*arguments), twin.evaluate(*arguments)
    assert ours[:2] == pytest.approx(theirs[:2], rel=1e-12)
    assert ours[2].tolist() == theirs[2].tolist()
    assert ours[3].tolist() == theirs[3].tolist()


@given(st.integers(0, 100_000))
def test_unions_ranks_and_eviction(seed):
    rng = np.random.default_rng(seed)
    n, n_layers, n_experts, k = (int(rng.integers(least, 6)) for least in (0, 1, 1, 0))
    dtype = rng.choice([np.int16, np.int32, np.int64])
    experts = rng.integers(-1, n_experts, (n, n_layers, k)).astype(dtype)
    masks = [one.union_mask(experts[::2], n_experts) for one in (compiled, twin)]
    assert np.array_equal(*masks)
    history = rng.integers(-1, n_experts, (n, 3, n_layers, k)).astype(dtype)
    weight = np.array([1.0, 0.5, 0.25])
    found = [one.heaviest(history, weight, n_experts) for one in (compiled, twin)]
    assert np.array_equal(*found)
    held = [rng.random((n_layers, n_experts)) < 0.7] * 2
    rank = rng.integers(0, 4, (n_layers, n_experts)) / 4.0
    slots = rng.integers(0, 5, n_layers)
    for i, one in enumerate((compiled, twin)):
        held[i] = held[i].copy()
        one.evict(held[i], rank, slots)
    assert np.array_equal(*held)
    assert (held[0].sum(axis=1) <= slots).all()


def grown_states(instance, cuts):
    """Both kernels' states, grown level by level at ``cuts``; roots must come first."""
    tree, routing = instance.tree, instance.routing
    states = [one.TreeState(*price_arguments(instance)) for one in (compiled, twin)]
    for first, last in zip([0, *cuts], [*cuts, tree.n_nodes], strict=True):
        for state in states:
            bad = state.extend(
                tree.parent[first:last], tree.path_prob[first:last], routing.experts[first:last]
            )
            assert bad == -1
    assert [state.n_nodes for state in states] == [tree.n_nodes] * 2
    return states


@pytest.mark.parametrize("kind", KINDS)
def test_tree_state(kind):
    for seed in range(60):
        rng = np.random.default_rng([seed, 7])
        n = int(rng.integers(2, 25))
        instance = random_instance(rng, kind=kind, n=n, n_roots=1)
        cuts = sorted(set(rng.integers(1, n, 2).tolist()))
        ours, theirs = grown_states(instance, cuts)
        nodes = np.arange(n, dtype=np.int32)
        assert ours.novelty(nodes) == pytest.approx(theirs.novelty(nodes), rel=1e-12)
        for rate in (math.nan, 0.7):
            mine, other = (s.solve(*question(instance, rate)) for s in (ours, theirs))
            assert mine[1]
            assert other[1]
            assert mine[2] == pytest.approx(other[2], rel=1e-9, abs=1e-9)
            assert mine[0].sum() == other[0].sum()
            assert mine[5][:2] == pytest.approx(other[5][:2], rel=1e-9)


def test_virtual_nodes_count_for_one_call_only():
    for seed in range(40):
        rng = np.random.default_rng([seed, 8])
        instance = random_instance(rng, kind="affine", n=8, n_roots=1)
        m = int(rng.integers(1, 5))
        parent = rng.integers(0, 8, m).astype(np.int32)
        prob = instance.tree.path_prob[parent] * rng.random(m)
        extra = rng.random(m)
        cost = instance.cost_model
        ours, theirs = grown_states(instance, [3])
        before = [s.solve(*question(instance)) for s in (ours, theirs)]
        asked = cost.fixed_time, cost.node_time, math.nan, 8 + m, math.inf, parent, prob, extra
        mine, other = (s.solve(*asked) for s in (ours, theirs))
        assert len(mine[0]) == len(other[0]) == 8 + m
        assert mine[5] is None
        assert other[5] is None
        assert mine[2] == pytest.approx(other[2], rel=1e-9)
        assert mine[2] >= before[0][2] * (1 - 1e-12)
        after = [s.solve(*question(instance)) for s in (ours, theirs)]
        for first, second in zip(before, after, strict=True):
            assert first[2] == second[2]
            assert np.array_equal(first[0], second[0])


def test_a_bad_id_leaves_the_tree_as_it_was():
    instance = random_instance(np.random.default_rng(1), kind="affine", n=6, n_roots=1)
    for state in grown_states(instance, [2]):
        before = state.solve(*question(instance))
        bad = np.full((1, instance.routing.n_layers, 1), instance.routing.n_experts)
        assert state.extend(np.array([0], dtype=np.int32), np.array([0.5]), bad) == 0
        assert state.n_nodes == 6
        assert state.solve(*question(instance))[2] == before[2]
