"""The problems that the benchmarks solve, by name."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np

from specfit_opt import CostModel, Instance, load_instance
from specfit_opt.expert_union import topmost_use, used_experts
from specfit_opt.generate import generate

#: Real routing, optional material beside the checkout.
REAL = Path(__file__).resolve().parents[2] / "shared" / "instances"
REAL_AFFINE = tuple(sorted(p.stem for p in REAL.glob("real-*-affine.npz")))
REAL_ALL = tuple(sorted(p.stem for p in REAL.glob("real-*.npz")))

STAIRCASES = ("step8", "step16")
SEEDS = range(8)


@cache
def qwen3(seed: int, node_time: str = "affine", nodes: int = 60) -> Instance:
    """Return a problem shaped like Qwen3-30B-A3B: 48 layers, 128 experts, top-8."""
    return generate("qwen3-30b-a3b", seed=seed, nodes=nodes, node_time=node_time)


@cache
def real(name: str) -> Instance:
    """Return a problem made of rows of public routing; absent unless the material is there."""
    return load_instance(REAL / f"{name}.npz")


@cache
def per_expert(instance: Instance) -> Instance:
    """Return the problem with a price per (layer, expert), as ``waste_share`` makes them.

    An expert costs what it did times the probability that no committed token uses it.
    """
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    shape = routing.n_layers, routing.n_experts
    used = tree.path_prob @ topmost_use(tree, used_experts(routing))
    price = cost.expert_table(*shape) * (1.0 - np.minimum(used.reshape(shape), 1.0))
    priced = CostModel(cost.fixed_time, cost.node_time, price, cost.resident_time)
    return Instance(tree, routing, priced, instance.name)


@cache
def sized(nodes: int = 60, layers: int = 48, experts: int = 128) -> Instance:
    """Return the Qwen3-like problem with one dimension changed."""
    return generate(
        "qwen3-30b-a3b",
        seed=0,
        nodes=nodes,
        layers=layers,
        experts=experts,
        top_k=min(8, experts // 2),
    )


Level = tuple[np.ndarray, np.ndarray, np.ndarray]


@cache
def levels(seed: int, size: int = 10, count: int = 6) -> tuple[Instance, tuple[Level, ...]]:
    """Return a problem and its tree as a root and ``count`` levels of ``size`` nodes."""
    instance = qwen3(seed, nodes=1 + size * count)
    tree, experts = instance.tree, instance.routing.experts
    order = np.argsort(tree.depth, kind="stable")
    rank = np.argsort(order)
    parent = np.where(tree.parent < 0, -1, rank[tree.parent])[order].astype(np.int32)
    prob = tree.path_prob[order].copy()
    ids = np.ascontiguousarray(experts[order])
    edges = [0, *range(1, tree.n_nodes + 1, size)]
    cut = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return instance, tuple((parent[s].copy(), prob[s].copy(), ids[s].copy()) for s in cut)
