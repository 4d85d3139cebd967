"""The generator: every kind is valid, reproducible and has the trait that it is named after."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specfit_opt import (
    DraftTree,
    Instance,
    InvalidInputError,
    Status,
    evaluate,
    save_instance,
    solve_instance,
)
from specfit_opt.generate import KINDS, NODE_TIMES, REALISTIC, SHAPES, generate
from specfit_opt.generate.routes import correlated_routing
from specfit_opt.generate.trees import drafted_tree

# Pools are made small here; their full size has a test of its own.
SMALL: dict[str, dict[str, Any]] = {"pool": {"nodes": 150}, "deep-chain": {"nodes": 100}}
MODELS = [name for name in REALISTIC if name != "tiny"]


def make(kind: str, seed: int, **options: Any) -> Instance:
    return generate(kind, seed=seed, **(SMALL.get(kind, {}) | options))


def overlap(instance: Instance) -> float:
    """Mean share of a parent's experts that a child has too."""
    ids, parent = instance.routing.experts, instance.tree.parent
    children = np.flatnonzero(parent >= 0)
    same = ids[children][:, :, :, None] == ids[parent[children]][:, :, None, :]
    return float(same.any(axis=3).mean())


# ---- every kind


def test_the_promised_kinds_are_there() -> None:
    assert set(REALISTIC) == set(SHAPES) == {*MODELS, "tiny"}
    assert set(MODELS) == {
        "qwen3-30b-a3b",
        "mixtral-8x7b",
        "gpt-oss-120b",
        "olmoe-1b-7b",
        "deepseek-v3",
    }
    assert set(NODE_TIMES) == {"affine", "concave", "convex", "step8", "step16", "budget"}
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.summary
        assert kind.source


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_instance(kind: str, tmp_path: Any) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        save_instance(tmp_path / f"{name}.npz", make(kind, seed))
    first, again, other = ((tmp_path / f"{name}.npz").read_bytes() for name in "abc")
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", KINDS)
def test_solvable_by_every_node_time(kind: str) -> None:
    if "node_time" not in KINDS[kind].options:
        pytest.fail(f"{kind} does not take node_time")
    for name in NODE_TIMES:
        instance = make(kind, 1, node_time=name)
        solution = solve_instance(instance, method="eagle")
        solution.check(instance.tree, instance.routing, instance.cost_model)
        assert name in instance.name
        time = instance.cost_model.node_time
        assert isinstance(time, float) == (name == "affine")
        if name == "budget":
            forbidden = np.isinf(time).sum()  # type: ignore[arg-type]
            assert forbidden > 0 or kind == "one-node"


@pytest.mark.parametrize("kind", KINDS)
def test_siblings_are_alternatives(kind: str) -> None:
    tree = make(kind, 2).tree
    for v, below in enumerate(tree.children):
        assert tree.path_prob[list(below)].sum() <= tree.path_prob[v] * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_options_reach_the_instance(kind: str) -> None:
    values: dict[str, Any] = {
        "nodes": 30,
        "roots": 3,
        "layers": 3,
        "experts": 24,
        "top_k": 2,
    }
    if kind == "one-node":
        values["nodes"] = 3
    options = {name: value for name, value in values.items() if name in KINDS[kind].options}
    instance = generate(kind, seed=5, **options)
    assert instance.tree.n_nodes == values["nodes"]
    if "roots" in options:
        assert instance.tree.n_roots == 3
        assert "forest3" in instance.name
    if "layers" in options:
        assert instance.routing.n_layers == 3
    if "experts" in options:
        assert instance.routing.n_experts == 24
    if "top_k" in options:
        assert instance.routing.experts.shape[2] == 2
    assert instance.name.startswith(kind)
    assert instance.name.endswith("-s5")


# ---- realistic kinds


@pytest.mark.parametrize("kind", REALISTIC)
def test_shape(kind: str) -> None:
    instance = make(kind, 0)
    shape = SHAPES[kind]
    assert instance.tree.n_nodes == 60
    assert instance.routing.experts.shape == (60, shape.n_layers, shape.top_k)
    assert instance.routing.n_experts == shape.n_experts
    for ids in instance.routing.experts[:5].reshape(-1, shape.top_k):
        assert len(set(ids.tolist())) == shape.top_k
    resident = instance.routing.resident.sum(axis=1)
    assert (resident == shape.n_experts // 2).all()


@pytest.mark.parametrize("kind", MODELS)
def test_neighbours_share_a_third(kind: str) -> None:
    mean = np.mean([overlap(make(kind, s)) for s in range(3)])
    if kind == "mixtral-8x7b":  # of 8 experts, 2 popular ones meet by chance
        assert 1 / 3 < mean < 0.5
    else:
        assert mean == pytest.approx(1 / 3, abs=0.06)


def test_overlap_is_what_was_asked_for() -> None:
    for skew, target in ((0.0, 0.2), (0.8, 0.4), (1.2, 0.6), (1.2, 1.0)):
        instance = make("qwen3-30b-a3b", 1, overlap=target, skew=skew, layers=24)
        assert overlap(instance) == pytest.approx(target, abs=0.06)
    # Popularity alone makes strangers meet; flat popularity hardly does.
    assert overlap(make("qwen3-30b-a3b", 1, overlap=0.0, layers=24)) > 0.25
    assert overlap(make("qwen3-30b-a3b", 1, overlap=0.0, skew=0.0, layers=24)) < 0.1


@pytest.mark.parametrize(
    ("top_k", "target", "recorded"),
    # Distinct experts per layer over 2, 4, 8 and 16 consecutive tokens as recorded from
    # Qwen3-30B-A3B (6 of its 8 experts) and gpt-oss-120b (2 of 4), both of 128 experts.
    [(6, 0.37, (9.8, 15.7, 24.0, 34.7)), (2, 0.19, (3.6, 6.2, 10.4, 17.0))],
)
def test_unions_grow_as_recorded(top_k: int, target: float, recorded: tuple[float, ...]) -> None:
    chain = DraftTree.from_conditional(np.arange(32) - 1, np.ones(32))
    routing = correlated_routing(
        np.random.default_rng(0),
        chain,
        layers=48,
        experts=128,
        top_k=top_k,
        skew=1.2,
        overlap=target,
        resident=0.0,
    )
    for tokens, expected in zip((2, 4, 8, 16), recorded, strict=True):
        windows = [routing.experts[s : s + tokens] for s in range(0, 33 - tokens, 4)]
        sizes = [len(set(w[:, layer].ravel().tolist())) for w in windows for layer in range(48)]
        assert np.mean(sizes) == pytest.approx(expected, rel=0.15)


def test_residents_are_the_experts_in_use() -> None:
    for share in (0.125, 0.25, 0.5):
        routing = make("qwen3-30b-a3b", 2, resident=share).routing
        hits = np.take_along_axis(
            routing.resident[None].repeat(60, axis=0), routing.experts.astype(np.int64), axis=2
        )
        assert hits.mean() > 1.5 * share
        assert routing.resident.mean() == share
    assert not make("qwen3-30b-a3b", 2, resident=0.0).routing.resident.any()
    assert make("qwen3-30b-a3b", 2, resident=1.0).routing.resident.all()


@pytest.mark.parametrize("kind", REALISTIC)
def test_the_optimum_is_not_trivial(kind: str) -> None:
    sizes = []
    gains = []
    for seed in range(12):
        solution = solve_instance(make(kind, seed))
        assert solution.status is Status.OPTIMAL
        sizes.append(solution.n_selected)
        fixed = solve_instance(make(kind, seed), method="eagle")
        gains.append(solution.throughput / fixed.throughput)
    trivial = sizes.count(1) + sizes.count(60)
    assert trivial <= 3, sizes
    assert len(set(sizes)) >= 3, sizes
    assert max(gains) > 1.02


def test_times_are_seconds() -> None:
    for kind in MODELS:
        solution = solve_instance(make(kind, 0))
        assert 0.025 < solution.cycle_time < 2.0
        assert 1.0 < solution.throughput < 200.0


def test_bandwidth_and_spread() -> None:
    slow = make("gpt-oss-120b", 0, bandwidth=1e9).cost_model.expert_time
    assert slow == SHAPES["gpt-oss-120b"].expert_bytes / 1e9
    spread = make("non-uniform", 0).cost_model.expert_time
    assert isinstance(spread, np.ndarray)
    assert np.log(spread).std() == pytest.approx(0.5, abs=0.05)
    assert make("tiny", 0, resident_time=0.001).cost_model.resident_time == 0.001
    assert make("tiny", 0, token_time=0.5).cost_model.node_time == 0.5


def test_node_times() -> None:
    def table(name: str) -> np.ndarray:
        return make("tiny", 0, node_time=name, token_time=1.0).cost_model.node_table(60)

    rises = {name: np.diff(table(name)) for name in ("affine", "concave", "convex")}
    assert np.allclose(rises["affine"], 1.0)
    assert (np.diff(rises["concave"]) < 0).all()
    assert (np.diff(rises["convex"]) > 0).all()
    for width in (8, 16):
        steps = table(f"step{width}")
        assert steps[1] == steps[width] == width
        assert steps[width + 1] == 2 * width
    budget = table("budget")
    assert budget[10] == 10.0
    assert math.isinf(budget[11])
    limited = make("tiny", 0, node_time="budget", budget=7).cost_model.node_table(60)
    assert math.isfinite(limited[7])
    assert math.isinf(limited[8])


@pytest.mark.parametrize(("nodes", "roots"), [(1, 1), (2, 1), (60, 1), (61, 4), (5, 5), (611, 1)])
def test_drafted_tree(nodes: int, roots: int) -> None:
    tree = drafted_tree(np.random.default_rng(0), nodes, roots)
    assert (tree.n_nodes, tree.n_roots) == (nodes, roots)
    assert (np.diff(tree.depth) >= 0).all()  # level by level
    assert tree.depth.max() <= 6
    if nodes > 10 * roots:
        assert 2.0 < tree.path_prob.sum() / roots < 7.0


# ---- hard kinds


def test_greedy_stops_early_where_routing_saturates() -> None:
    ratios = []
    for seed in range(6):
        instance = make("saturating", seed)
        best = solve_instance(instance)
        assert 1 < best.n_selected < 60
        ratios.append(solve_instance(instance, method="greedy").throughput / best.throughput)
    assert np.mean(ratios) < 0.97
    union = best.experts_used
    assert union.mean() > 7.0  # of 8


@pytest.mark.parametrize("kind", ["densest-k-subgraph", "min-k-union"])
def test_stars_are_hard(kind: str) -> None:
    instance = make(kind, 0)
    assert instance.tree.n_nodes == 200
    assert instance.tree.depth.tolist() == [0] + [1] * 199
    solution = solve_instance(instance, time_limit=0.2)
    solution.check(instance.tree, instance.routing, instance.cost_model)
    assert solution.status is Status.FEASIBLE
    assert solution.gap is not None
    assert solution.gap > 0.005
    assert 40 < solution.n_selected <= 60  # the budget binds


def edges_of(instance: Instance) -> set[tuple[int, int]]:
    ids = instance.routing.experts[1:, 0]
    users: dict[int, list[int]] = {}
    for vertex, row in enumerate(ids.tolist()):
        for e in row:
            if e >= 0:
                users.setdefault(e, []).append(vertex)
    assert all(len(ends) == 2 for ends in users.values())
    pairs = {(a, b) for a, b in users.values()}
    assert len(pairs) == instance.routing.n_experts
    return pairs


def test_densest_k_subgraph_is_the_reduction() -> None:
    instance = make("densest-k-subgraph", 3, nodes=40, top_k=4, node_time="affine")
    edges = edges_of(instance)
    degree = (instance.routing.experts[1:, 0] >= 0).sum(axis=1)
    assert degree.max() == 4
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = rng.permutation(39)[:12]
        inside = sum(a in chosen and b in chosen for a, b in edges)
        nodes = [0, *(chosen + 1).tolist()]
        parts = (instance.tree, instance.routing, instance.cost_model)
        assert evaluate(*parts, nodes).experts_loaded[0] == degree[chosen].sum() - inside


def test_min_k_union_is_the_reduction() -> None:
    instance = make("min-k-union", 3, nodes=40)
    pairs = instance.routing.experts[1:, 0]
    assert len({tuple(sorted(p)) for p in pairs.tolist()}) == 39
    assert (pairs[:, 0] != pairs[:, 1]).all()
    n_experts = instance.routing.n_experts
    assert pairs.max() < n_experts
    assert n_experts * (n_experts - 1) / 4 >= 39


def test_ties_are_exact() -> None:
    for options in ({}, {"nodes": 9, "layers": 2, "top_k": 1}, {"layers": 7, "top_k": 4}):
        instance = make("ties", 1, **options)
        tree = instance.tree
        parts = (tree, instance.routing, instance.cost_model)
        rng = np.random.default_rng(0)
        for _ in range(20):
            nodes = {0, 1}
            for v in rng.permutation(tree.n_nodes)[: rng.integers(0, 6)].tolist():
                nodes |= set(tree.path(v))
            assert evaluate(*parts, nodes).throughput == 32.0  # to the last bit
        assert evaluate(*parts, [0]).throughput < 32.0
        solution = solve_instance(instance)
        assert solution.nodes.tolist() == [0, 1]
        assert solution.status is Status.OPTIMAL


def test_zero_probability() -> None:
    for seed in range(5):
        instance = make("zero-probability", seed)
        zero = instance.tree.path_prob == 0.0
        assert 0.1 < zero.mean() < 0.95
        assert not zero[solve_instance(instance).nodes].any()


def test_one_node() -> None:
    assert make("one-node", 0).tree.n_nodes == 1
    assert solve_instance(make("one-node", 0)).nodes.tolist() == [0]
    batch = make("one-node", 0, roots=4)
    assert solve_instance(batch).nodes.tolist() == [0, 1, 2, 3]


def test_deep_chain() -> None:
    instance = generate("deep-chain", seed=0)
    assert instance.tree.depth.tolist() == list(range(500))
    assert 10 < solve_instance(instance).n_selected < 500


def test_pool_of_5000() -> None:
    instance = generate("pool", seed=0, layers=6)
    assert instance.tree.n_nodes == 5000
    assert instance.routing.experts.shape == (5000, 6, 8)
    solution = solve_instance(instance)
    assert solution.status is Status.OPTIMAL
    assert 1 < solution.n_selected < 5000


# ---- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("qwen", {}, "kind 'qwen' is unknown; the kinds are qwen3-30b-a3b, "),
        ("ties", {"overlap": 0.5}, "kind 'ties' has no option 'overlap'; it takes nodes, layers,"),
        ("tiny", {"nodes": 0}, "nodes must be a whole number from 1 to 1048576, got"),
        ("tiny", {"layers": 2.5}, "layers must be a whole number from 1 to 1048576,"),
        ("tiny", {"nodes": 3, "roots": 4}, "roots = 4 exceeds nodes = 3"),
        ("tiny", {"top_k": 17}, "top_k = 17 exceeds experts = 16"),
        ("tiny", {"node_time": "log"}, "node_time 'log' is unknown; the node_times are"),
        ("tiny", {"budget": 5}, "budget needs node_time='budget', not 'affine'"),
        ("tiny", {"budget": 61, "node_time": "budget"}, "budget must be from 1 .* to 60"),
        ("tiny", {"resident": 1.5}, "resident must be a finite number of at least 0 and"),
        ("tiny", {"overlap": math.nan}, "overlap must be a finite number of at least 0 and"),
        ("tiny", {"skew": -1.0}, "skew must be a finite number of at least 0 and at"),
        ("tiny", {"time_spread": math.inf}, "time_spread must be a finite number of at least 0"),
        ("tiny", {"bandwidth": 0.0}, "bandwidth must be a finite number of at least 1,"),
        ("tiny", {"token_time": -1.0}, "token_time must be a finite number of seconds"),
        ("densest-k-subgraph", {"top_k": 3}, "an even top_k >= 2"),
        ("min-k-union", {"experts": 4}, "4 experts have 6 pairs, but 199 leaves each need another"),
        ("ties", {"nodes": 1}, "ties needs at least 2 nodes"),
    ],
)
def test_refusals(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        generate(kind, seed=0, **options)


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_seed(seed: Any) -> None:
    with pytest.raises(InvalidInputError, match="seed must be a whole number"):
        generate("tiny", seed=seed)
