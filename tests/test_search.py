"""TreeSearch: the same answers as a fresh solve, and advice that keeps its word."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import pickle
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from interrupts import Interrupter
from strategies import KINDS, random_instance, random_rate, random_tree

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    InvalidInputError,
    SpecfitError,
    Status,
    TreeSearch,
    kernel,
    solve,
)
from specfit_opt import search as search_module
from specfit_opt.expert_union import topmost_use, used_experts
from specfit_opt.generate import generate
from specfit_opt.kernel import interrupt, twin

COST = CostModel(1.0, 0.01, 0.2)


def search_of(instance, rate=None):
    routing = instance.routing
    return TreeSearch(
        instance.cost_model, routing.n_layers, routing.n_experts, routing.resident, rate=rate
    )


def levels_of(instance, size):
    """Split an instance with one root into its root and levels of ``size`` nodes."""
    tree, experts = instance.tree, instance.routing.experts
    edges = [0, *range(1, tree.n_nodes, size), tree.n_nodes]
    for first, last in itertools.pairwise(edges):
        if last > first:
            yield tree.parent[first:last], tree.path_prob[first:last], experts[first:last]


@pytest.mark.parametrize("kind", KINDS)
def test_every_level_equals_a_fresh_solve(kind):
    for seed in range(25):
        rng = np.random.default_rng([seed, 3])
        instance = random_instance(rng, kind=kind, n=int(rng.integers(2, 16)), n_roots=1)
        rate = random_rate(rng, instance) if seed % 2 else None
        table = instance.cost_model.node_table(instance.tree.n_nodes)
        if not np.isfinite(table[1]):
            continue  # the root alone must be allowed
        search = search_of(instance, rate)
        parents: list[int] = []
        probs: list[float] = []
        spent = 0.0
        for parent, prob, experts in levels_of(instance, 3):
            draft_time = float(rng.random()) * 0.1
            found = search.extend(parent, prob, experts, draft_time=draft_time)
            spent += draft_time
            parents += parent.tolist()
            probs += prob.tolist()
            n = len(parents)
            tree = DraftTree(parents, probs)
            routing = ExpertRouting(
                instance.routing.experts[:n], instance.routing.n_experts, instance.routing.resident
            )
            cost = instance.cost_model.with_fixed_time(instance.cost_model.fixed_time + spent)
            fresh = solve(tree, routing, cost, rate=rate)
            assert found.status is Status.OPTIMAL
            assert found.objective == pytest.approx(fresh.objective, rel=1e-9, abs=1e-9)
            assert found.n_selected == fresh.n_selected
            found.check(tree, routing, cost)
            assert search.solution is found
            assert search.n_nodes == n
            assert search.draft_time == pytest.approx(spent)


def continuations(instance, rng, per_parent=2):
    """Draw a next level whose siblings' probabilities add up to at most their parent's."""
    tree = instance.tree
    depth = tree.depth.max()
    parent, prob = [], []
    for v in np.flatnonzero(tree.depth == depth).tolist():
        shares = rng.dirichlet(np.ones(per_parent + 1))[:per_parent]
        for share in shares.tolist():
            parent.append(v)
            prob.append(share * float(tree.path_prob[v]))
    shape = (len(parent), instance.routing.n_layers, instance.routing.experts.shape[2])
    experts = rng.integers(0, instance.routing.n_experts, shape)
    return np.array(parent, dtype=np.int32), np.array(prob), experts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rated", [False, True])
def test_no_continuation_beats_the_certified_bound(kind, rated):
    stops = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 5])
        instance = random_instance(rng, kind=kind, n=6, n_roots=1)
        if kind not in ("affine", "affine-table"):
            # A table must have entries for the sizes to come.
            table = rng.random(40).cumsum() if seed % 2 else 1.0 + rng.random(40)
            table[2:][rng.random(38) < 0.2] = math.inf
            cost = instance.cost_model
            cost = CostModel(1.0, table, cost.expert_time, cost.resident_time)
        else:
            cost = CostModel(1.0, 0.2, instance.cost_model.expert_time)
        rate = 0.4 if rated else None
        routing = instance.routing
        search = TreeSearch(cost, routing.n_layers, routing.n_experts, routing.resident, rate=rate)
        order = np.argsort(instance.tree.depth, kind="stable")
        rank = np.argsort(order)
        parent = np.where(
            instance.tree.parent[order] < 0, -1, rank[instance.tree.parent[order]]
        ).astype(np.int32)
        prob, experts = instance.tree.path_prob[order], routing.experts[order]
        last = int((instance.tree.depth == instance.tree.depth.max()).sum())
        ordered = type(instance)(
            DraftTree(parent, prob), ExpertRouting(experts, routing.n_experts), cost
        )
        edges = [0, 6 - last, 6] if last < 6 else [0, 6]
        for a, b in itertools.pairwise(edges):
            search.extend(parent[a:b], prob[a:b], experts[a:b])
        level_time = float(rng.random()) * 0.2
        advice = search.advise(level_time)
        deep = search.advise(level_time, levels=2)
        assert deep.bound >= advice.bound - 1e-12
        stops += not advice.go
        assert advice.go == (advice.bound > advice.current * (1 + 1e-12) + (1e-12 if rated else 0))
        for _ in range(4):
            grown = TreeSearch(
                cost, routing.n_layers, routing.n_experts, routing.resident, rate=rate
            )
            grown.extend(parent, prob, experts)
            after = grown.extend(*continuations(ordered, rng), draft_time=level_time)
            slack = 1e-9 * max(abs(advice.bound), 1e-3)
            assert after.objective <= max(advice.bound, advice.current) + slack
            assert after.objective <= advice.bound + slack or not advice.go
    assert stops > 0


def test_certified_stop_names_its_figures():
    search = TreeSearch(COST, 1, 5)
    search.extend([-1], [1.0], [[[0, 1]]])
    search.extend([0], [0.01], [[[2, 3]]])
    advice = search.advise(level_time=10.0)
    assert not advice.go
    assert advice.rule == "certified"
    assert advice.expected is None
    assert advice.bound < advice.current == search.solution.throughput
    assert "no continuation can exceed" in advice.reason


def test_expected_rule_decides_where_acceptance_is_known():
    search = TreeSearch(COST, 1, 8)
    search.extend([-1], [1.0], [[[0, 1]]])
    search.extend([0], [0.9], [[[2, 3]]])
    sure = search.advise(level_time=0.01, acceptance=0.95)
    assert (sure.go, sure.rule) == (True, "expected")
    hopeless = search.advise(level_time=0.01, acceptance=0.0)
    assert (hopeless.go, hopeless.rule) == (False, "expected")
    assert hopeless.expected < hopeless.current < hopeless.bound
    # The same figures by hand: a third node with p = 0.9 * 0.95 that loads two experts.
    time = 1.0 + 0.01 + 3 * 0.01 + 6 * 0.2
    assert sure.expected == pytest.approx((1 + 0.9 + 0.9 * 0.95) / time)


def test_expected_rule_prices_a_roots_own_experts():
    search = TreeSearch(CostModel(1.0, 0.01, 1.0), 1, 4)
    search.extend([-1], [1.0], [[[0, 1]]])
    # A child that loads two experts, as the root did; were it free, 1.9 tokens would take 3.02 s.
    expected = (1.0 + 0.9) / (1.0 + 2 * 0.01 + 4 * 1.0)
    assert search.advise(level_time=0.0, acceptance=0.9).expected == pytest.approx(expected)


def test_acceptance_by_depth():
    search = TreeSearch(COST, 1, 8)
    search.extend([-1], [1.0], [[[0, 1]]])
    search.extend([0], [0.9], [[[2, 3]]])
    by_depth = [search.advise(0.01, a).expected for a in ([0.1, 0.1, 0.95], [0.1, 0.1, 0.95, 0.2])]
    assert by_depth == [search.advise(0.01, 0.95).expected] * 2
    assert search.advise(0.01, [0.3]).expected == search.advise(0.01, 0.3).expected


def test_frontier_limits_where_the_tree_may_grow():
    search = TreeSearch(COST, 1, 8)
    search.extend([-1], [1.0], [[[0, 1]]])
    search.extend([0, 0], [0.8, 0.1], [[[2, 3]], [[4, 5]]])
    every = search.advise(0.01).bound
    assert search.advise(0.01, frontier=[1, 2]).bound == every
    assert search.advise(0.01, frontier=[2]).bound < every


def test_forest_grows_every_root():
    search = TreeSearch(COST, 1, 4)
    search.extend([-1, -1], [1.0, 1.0], [[[0]], [[1]]])
    solution = search.extend([0, 1], [0.9, 0.9], [[[0]], [[1]]])
    assert solution.nodes.tolist() == [0, 1, 2, 3]


def test_slots_may_differ_between_levels():
    search = TreeSearch(COST, 1, 8)
    search.extend([-1], [1.0], [[[0, 1, 2]]])
    solution = search.extend([0], [0.9], np.array([[[0]]], dtype=np.int16))
    assert solution.experts_used.tolist() == [3]


def test_growing_past_the_first_reservation():
    instance = generate("qwen3-30b-a3b", seed=2, nodes=200)
    search = search_of(instance)
    for level in levels_of(instance, 7):
        found = search.extend(*level)
    fresh = solve(instance.tree, instance.routing, instance.cost_model)
    assert found.throughput == pytest.approx(fresh.throughput, rel=1e-12)


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (([0], [1.5], [[[0]]]), r"path_prob\[0\] = 1.5 \(node 1\) is no probability"),
        (([0], [math.nan], [[[0]]]), r"path_prob\[0\] = nan \(node 1\) is no probability"),
        (([0, 1], [0.5, 0.6], [[[0]], [[0]]]), r"path_prob\[1\] = 0.6 \(node 2\) exceeds that of"),
        (([1], [0.5], [[[0]]]), r"parent\[0\] = 1 is no earlier node; node ids count on"),
        (([-1], [1.0], [[[0]]]), "roots come with the first level"),
        (([-2], [0.5], [[[0]]]), r"parent\[0\] = -2 is no earlier node"),
        (([0], [0.5], [[[7]]]), r"experts\[0, 0, 0\] = 7 of this level is no expert of 5"),
        (([0], [0.5], [[[0], [0]]]), r"experts must be integers of shape \(nodes, 1, slots\)"),
        (([0], [0.5], [[[0.0]]]), "experts must be integers"),
        (([0, 0], [0.5], [[[0]]]), "give the same number"),
        (([0.0], [0.5], [[[0]]]), "parent must hold integers"),
        (([], [], np.zeros((0, 1, 1), dtype=int)), "(parent must hold integers|no nodes)"),
    ],
)
def test_bad_level_leaves_the_tree_as_it_was(level, message):
    search = TreeSearch(COST, 1, 5)
    before = search.extend([-1], [1.0], [[[0, 1]]])
    with pytest.raises(InvalidInputError, match=message):
        search.extend(*level)
    assert search.n_nodes == 1
    assert search.solution is before
    after = search.extend([0], [0.9], [[[0, 1]]])
    assert after.nodes.tolist() == [0, 1]


def test_a_root_of_another_probability_is_refused():
    with pytest.raises(InvalidInputError, match="the probability of a root is 1"):
        TreeSearch(COST, 1, 5).extend([-1], [0.5], [[[0]]])


def test_rounding_above_the_parent_is_clipped():
    search = TreeSearch(COST, 1, 5)
    search.extend([-1], [1.0 + 5e-7], [[[0]]])
    solution = search.extend([0, 1], [0.5, 0.5 + 5e-7], [[[0]], [[0]]])
    assert solution.expected_tokens == 2.0


def test_a_table_the_tree_outgrows_is_refused():
    search = TreeSearch(CostModel(1.0, [0.0, 0.1, 0.2], 0.1), 1, 5)
    search.extend([-1], [1.0], [[[0]]])
    search.extend([0], [0.9], [[[0]]])
    search.advise(0.1)  # asks about sizes past the table, which count as not allowed
    with pytest.raises(InvalidInputError, match="node_time has 3 entries but the tree has 3 nodes"):
        search.extend([1], [0.8], [[[0]]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.advise(-1.0), "level_time must be a finite number of seconds"),
        (lambda s: s.advise(0.1, 1.5), "acceptance must be"),
        (lambda s: s.advise(0.1, []), "acceptance must"),
        (lambda s: s.advise(0.1, levels=0), "levels must be a whole number from 1 to 1024"),
        (lambda s: s.advise(0.1, frontier=[9]), "frontier node 9 is not in the tree"),
        (lambda s: s.extend([0], [0.5], [[[0]]], draft_time=-1.0), "draft_time must be"),
    ],
)
def test_bad_argument(call, message):
    search = TreeSearch(COST, 1, 5)
    search.extend([-1], [1.0], [[[0]]])
    with pytest.raises(InvalidInputError, match=message):
        call(search)


@pytest.mark.parametrize("use", [lambda s: s.advise(0.1), lambda s: s.solution])
def test_empty_tree(use):
    with pytest.raises(InvalidInputError, match="the tree is empty; extend it with the root"):
        use(TreeSearch(COST, 1, 5))


def test_cost_model_of_another_shape_is_refused():
    with pytest.raises(InvalidInputError, match=r"expert_time has shape \(3,\)"):
        TreeSearch(CostModel(1.0, 0.1, [0.1, 0.2, 0.3]), 2, 5)
    with pytest.raises(InvalidInputError, match="n_layers must be a whole number of at least 1"):
        TreeSearch(COST, 0, 5)


def waste_cost(cost, tree, routing, share):
    """The cost model whose prices are what ``waste_share`` charges for the whole tree."""
    shape = routing.n_layers, routing.n_experts
    met = (tree.path_prob @ topmost_use(tree, used_experts(routing))).reshape(shape)
    price = cost.expert_table(*shape) * share[:, None] * (1.0 - np.minimum(met, 1.0))
    return CostModel(cost.fixed_time, cost.node_time, price, cost.resident_time)


@pytest.mark.parametrize("n_experts", [5, 64, 70])
@pytest.mark.parametrize("make_state", [None, twin.TreeState], ids=["kernel", "twin"])
def test_waste_share_charges_for_loads_that_no_committed_token_needs(make_state, n_experts):
    for seed in range(20):
        rng = np.random.default_rng([seed, 11, n_experts])
        n, shape = int(rng.integers(2, 16)), (2, n_experts)
        tree = random_tree(rng, n, n_roots=1)
        experts = rng.integers(-1, n_experts, (n, 2, 3))
        price = rng.random(shape if rng.random() < 0.5 else shape[:1])
        cost = CostModel(1.0, 0.01, price, float(rng.choice([0.0, 0.25])))
        resident = rng.random(shape) < 0.3
        share = rng.random(2)
        search = TreeSearch(cost, *shape, resident, waste_share=share)
        if make_state is not None:
            times = cost.kernel_expert_time(*shape)
            search._state = make_state(resident, times, cost.resident_time, share)
        for first, last in itertools.pairwise([0, *range(1, n, 4), n]):
            part = tree.parent[first:last], tree.path_prob[first:last], experts[first:last]
            found = search.extend(*part)
            so_far = DraftTree(tree.parent[:last], tree.path_prob[:last])
            routing = ExpertRouting(experts[:last], n_experts, resident)
            charged = waste_cost(cost, so_far, routing, share)
            expected = solve(so_far, routing, charged)
            assert found.objective == pytest.approx(expected.objective, rel=1e-9)
            assert found.nodes.tolist() == expected.nodes.tolist()
            assert found.cycle_time == pytest.approx(expected.cycle_time)
            assert found.experts_loaded.tolist() == expected.experts_loaded.tolist()
            full = TreeSearch(charged, *shape, resident)
            full.extend(so_far.parent, so_far.path_prob, experts[:last])
            frontier = list(range(first, last))
            advice, other = (one.advise(0.1, 0.5, frontier=frontier) for one in (search, full))
            assert advice.bound == pytest.approx(other.bound)
            assert advice.expected == pytest.approx(other.expected)
        again = pickle.loads(pickle.dumps(search))
        assert again.advise(0.1, 0.5).bound == pytest.approx(search.advise(0.1, 0.5).bound)


def test_a_bad_level_takes_back_what_it_made_likely():
    search = TreeSearch(COST, 1, 5, waste_share=[0.5])
    search.extend([-1], [1.0], [[[0]]])
    with pytest.raises(InvalidInputError, match="is no expert"):
        search.extend([0, 0], [0.5, 0.2], [[[1]], [[7]]])
    found = search.extend([0], [0.25], [[[1]]])
    assert found.transfer_time in (0.0, pytest.approx(0.5 * 0.75 * COST.expert_time))


def test_waste_shares_are_checked():
    for share in ([1.0, 1.0], [-0.1], [1.1], [np.nan]):
        with pytest.raises(InvalidInputError, match="waste_share must be 1 numbers from 0 to 1"):
            TreeSearch(COST, 1, 5, waste_share=share)
    with pytest.raises(InvalidInputError, match="the first level has 2 roots"):
        TreeSearch(COST, 1, 5, waste_share=[1.0]).extend([-1, -1], [1.0, 1.0], [[[0]], [[1]]])


@pytest.mark.parametrize("make_state", [None, twin.TreeState], ids=["kernel", "twin"])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_copy_goes_on_by_itself(copied, make_state, monkeypatch):
    if make_state is not None:
        monkeypatch.setattr(kernel, "TreeState", make_state)
    resident = [[True, False, False, False, False]]
    search = TreeSearch(CostModel(1.0, 0.01, [0.2], 0.01), 1, 5, resident)
    assert copied(search).n_nodes == 0
    search.extend([-1], [1.0], [[[0, 1]]], draft_time=0.5)
    other = copied(search)
    assert other.solution.to_dict() == search.solution.to_dict()
    for one in (search, other):
        assert one.extend([0, 0], [0.8, 0.1], [[[0, 2]], [[3, 4]]], 0.25).n_selected > 1
    assert other.solution.to_dict() == search.solution.to_dict()
    assert other.advise(0.1, 0.5) == search.advise(0.1, 0.5)
    other.extend([1], [0.7], [[[1, 2]]])
    assert (search.n_nodes, other.n_nodes) == (3, 4)
    assert search.draft_time == other.draft_time == 0.75


@pytest.mark.parametrize("make_state", [None, twin.TreeState], ids=["kernel", "twin"])
def test_an_interrupt_anywhere_leaves_the_search_as_it_was(make_state, monkeypatch):
    if make_state is not None:
        monkeypatch.setattr(kernel, "TreeState", make_state)
    interrupter = Interrupter([Path(search_module.__file__)])

    def grown():
        search = TreeSearch(COST, 1, 5)
        search.extend([-1], [1.0], [[[0, 1]]])
        return search

    def finished(search):
        search.extend([0, 0], [0.8, 0.7], [[[0, 2]], [[0, 2]]], draft_time=0.25)
        return search.solution.to_dict()

    level = ([0, 0], [0.5, 0.4], [[[1, 3]], [[3, 4]]], 0.125)
    for change in (lambda s: s.extend(*level), lambda s: s.advise(0.1)):
        changed = grown()
        interrupter.run(lambda c=change, s=changed: c(s))
        points = interrupter.count
        assert points > 3
        after, before = finished(changed), finished(grown())
        for at in range(1, points + 1):
            search = grown()
            assert interrupter.run(lambda c=change, s=search: c(s), at)
            assert finished(search) in (before, after)


def test_a_search_that_another_thread_solves_says_so():
    if kernel.NAME != "cython":
        pytest.skip("pure Python holds the GIL")
    instance = generate("densest-k-subgraph", seed=0, nodes=200)
    search = search_of(instance)
    event = threading.Event()

    def work():
        tree = instance.tree
        with interrupt.stopped_by(event), contextlib.suppress(CancelledError):
            search.extend(tree.parent, tree.path_prob, instance.routing.experts)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        time.sleep(0.1)
        with pytest.raises(SpecfitError, match="solved already"):
            search.extend([-1], [1.0], instance.routing.experts[:1])
    finally:
        event.set()
        worker.join()
    assert search.n_nodes == 0
    assert search.extend([-1], [1.0], instance.routing.experts[:1]).nodes.tolist() == [0]
