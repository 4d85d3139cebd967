"""Small random instances of every kind: hypothesis strategies and a plain seeded generator.

:func:`instances` is for property tests: it shrinks well. :func:`random_instance` is for
differential tests over thousands of seeds: it is fast. Both cover trees and forests, ties, zero
probabilities, -1 padding, duplicate expert ids, residents with and without a price, expert times
of every shape and node times of every kind in :data:`KINDS`. About half of what
:func:`random_instance` returns holds small dyadic fractions only, whose sums are exact: there,
equal objectives are equal to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt.cost import CostModel
from specfit_opt.instance import Instance
from specfit_opt.routing import ExpertRouting
from specfit_opt.tree import DraftTree

#: Kinds of node time. Only ``affine`` is a number, all others are tables.
KINDS = (
    "affine",
    "affine-table",
    "concave",
    "convex",
    "staircase",
    "budget",
    "holes",
    "arbitrary",
)

#: Shapes of expert time.
EXPERT_TIMES = ("scalar", "layer", "expert")


# --------------------------------------------------------------------------------------------
# the seeded generator


def random_instance(
    rng: np.random.Generator,
    *,
    kind: str | None = None,
    n: int | None = None,
    n_roots: int | None = None,
    expert_time: str | None = None,
    n_layers: int | None = None,
    n_experts: int | None = None,
) -> Instance:
    """Return a random instance; what is not given is drawn.

    Parameters
    ----------
    rng : numpy.random.Generator
        Equal states give equal instances.
    kind : str, optional
        One of :data:`KINDS`.
    n : int, optional
        Number of nodes; 1 to 12 when omitted.
    n_roots : int, optional
        Number of roots; one in two cases out of three when omitted.
    expert_time : str, optional
        One of :data:`EXPERT_TIMES`.
    n_layers, n_experts : int, optional
        1 to 3 layers and 1 to 10 experts (now and then 64 to 70, the edge of a machine word) when
        omitted.
    """
    kind = str(rng.choice(KINDS)) if kind is None else kind
    n = int(rng.integers(1, 13)) if n is None else n
    exact = bool(rng.random() < 0.5)
    tree = random_tree(rng, n, n_roots=n_roots, exact=exact)
    routing = random_routing(rng, n, n_layers=n_layers, n_experts=n_experts)
    fixed = 0.0 if rng.random() < 0.1 else _seconds(rng, 0.25, 4.0, exact)
    step = 0.0 if fixed > 0.0 and rng.random() < 0.1 else _seconds(rng, 0.125, 1.0, exact)
    node_time = random_node_time(rng, kind, n, tree.n_roots, step, exact=exact)
    if fixed == 0.0 and not isinstance(node_time, float) and (node_time[1:] == 0.0).any():
        fixed = 0.5  # a pass that takes no time is refused
    shape = str(rng.choice(EXPERT_TIMES)) if expert_time is None else expert_time
    sizes: dict[str, tuple[int, ...]] = {
        "scalar": (),
        "layer": (routing.n_layers,),
        "expert": (routing.n_layers, routing.n_experts),
    }
    top = float(rng.choice([0.125, 0.5, 2.0]))
    times = (
        rng.integers(0, 9, sizes[shape]) / 8.0 * top if exact else rng.random(sizes[shape]) * top
    )
    return Instance(
        tree,
        routing,
        CostModel(
            fixed,
            node_time,
            float(times) if shape == "scalar" else times,
            resident_time=0.0 if rng.random() < 0.6 else _seconds(rng, 0.125, 0.5, exact),
        ),
        name=f"{kind}-{n}",
    )


def random_tree(
    rng: np.random.Generator, n: int, *, n_roots: int | None = None, exact: bool = False
) -> DraftTree:
    """Return a random tree or forest of ``n`` nodes: bushy, deep, or a star.

    With ``exact``, probabilities are multiples of 1/8, so that many are equal.
    """
    if n_roots is None:
        n_roots = 1 if n == 1 or rng.random() < 2 / 3 else int(rng.integers(2, min(n, 4) + 1))
    reach = int(rng.choice([1, 3, n]))  # how far back a parent may lie: chain-like to bushy
    star = rng.random() < 0.1
    # Roots need not come first: their places are drawn, node 0 always being one.
    roots = {0, *(1 + rng.permutation(n - 1)[: n_roots - 1]).tolist()}
    parent, prob = [], []
    for v in range(n):
        if v in roots:
            parent.append(-1)
            prob.append(1.0)
            continue
        u = 0 if star else int(rng.integers(max(0, v - reach), v))
        parent.append(u)
        if rng.random() < 0.1:
            prob.append(0.0)
        elif exact:
            prob.append(int(rng.integers(0, int(prob[u] * 8) + 1)) / 8.0)
        else:
            prob.append(prob[u] * float(rng.random()) ** 0.5)
    return DraftTree(parent, prob)


def random_routing(
    rng: np.random.Generator,
    n: int,
    *,
    n_layers: int | None = None,
    n_experts: int | None = None,
) -> ExpertRouting:
    """Return random experts for ``n`` nodes, with padding, duplicates and residents."""
    n_layers = int(rng.integers(1, 4)) if n_layers is None else n_layers
    if n_experts is None:
        wide = rng.random() < 0.1
        n_experts = int(rng.integers(64, 71)) if wide else int(rng.integers(1, 11))
    k = int(rng.integers(1, 5))
    experts = rng.integers(0, n_experts, (n, n_layers, k))
    if rng.random() < 0.5:
        experts[rng.random(experts.shape) < 0.3] = -1
    if rng.random() < 0.3:  # few experts in use, so that many nodes share a user set
        experts = np.where(experts >= 0, experts % min(3, n_experts), -1)
    dtype = rng.choice([np.int16, np.int32, np.int64])
    resident = rng.random((n_layers, n_experts)) < float(rng.choice([0.0, 0.2, 0.6]))
    return ExpertRouting(experts.astype(dtype), n_experts, resident)


def random_node_time(
    rng: np.random.Generator,
    kind: str,
    n: int,
    n_roots: int,
    step: float,
    *,
    exact: bool = False,
) -> float | NDArray[np.float64]:
    """Return a node time of ``kind`` for trees of ``n`` nodes whose typical slope is ``step``."""
    if kind == "affine":
        return step
    sizes = np.arange(n + 1, dtype=np.float64)
    rises = rng.integers(0, 5, n) / 4.0 if exact else rng.random(n) * 2.0
    if kind == "affine-table":
        table = sizes * step
    elif kind == "concave":
        table = np.concatenate(([0.0], np.cumsum(np.sort(rises)[::-1]))) * step
    elif kind == "convex":
        table = np.concatenate(([0.0], np.cumsum(np.sort(rises)))) * step
    elif kind == "staircase":
        width = int(rng.integers(2, 6))
        table = np.ceil(sizes / width) * width * step
    elif kind == "budget":
        table = sizes * step
        table[int(rng.integers(n_roots, n + 1)) + 1 :] = math.inf
    elif kind == "holes":
        table = sizes * step
        table[rng.random(n + 1) < 0.5] = math.inf
        allowed = int(rng.integers(n_roots, n + 1))
        table[allowed] = allowed * step
    elif kind == "arbitrary":
        table = np.concatenate(([0.0], rises)) * step * n
    else:
        raise ValueError(f"kind {kind!r} is none of {KINDS}")
    if rng.random() < 0.2:  # longer than needed is allowed; entry 0 is never read
        table = np.concatenate((table, [0.0, math.inf]))
        table[0] = math.inf
    return table


def random_max_nodes(rng: np.random.Generator, instance: Instance) -> int | None:
    """Return a limit that leaves an allowed size, or None in one case out of three."""
    tree = instance.tree
    if rng.random() < 1 / 3:
        return None
    table = instance.cost_model.node_table(tree.n_nodes)
    least = tree.n_roots + int(np.flatnonzero(np.isfinite(table[tree.n_roots :]))[0])
    return int(rng.integers(least, tree.n_nodes + 3))


def random_rate(rng: np.random.Generator, instance: Instance) -> float:
    """Return a rate of the order of the instance's own ratios; now and then 0."""
    if rng.random() < 0.1:
        return 0.0
    tree, cost = instance.tree, instance.cost_model
    table = cost.node_table(tree.n_nodes)[tree.n_roots :]
    shortest = cost.fixed_time + float(table[np.isfinite(table)].min())
    return float(rng.choice([0.125, 0.5, 1.0])) * tree.n_roots / shortest


def _seconds(rng: np.random.Generator, low: float, high: float, exact: bool) -> float:
    if exact:
        return int(rng.integers(round(low * 8), round(high * 8) + 1)) / 8.0
    return float(rng.uniform(low, high))


# --------------------------------------------------------------------------------------------
# hypothesis strategies


def probabilities() -> st.SearchStrategy[float]:
    """Conditional probabilities; 0, 1/2 and 1 come often, so that paths tie."""
    return st.one_of(st.sampled_from([0.5, 1.0, 0.0, 0.25]), st.floats(0.0, 1.0, width=32))


def durations(low: float = 0.0, high: float = 4.0) -> st.SearchStrategy[float]:
    """Seconds; multiples of 1/8 come often. Positive ones stay clear of the subnormal range."""
    grid = st.integers(math.ceil(low * 8), int(high * 8)).map(lambda i: i / 8.0)
    return st.one_of(grid, st.floats(max(low, 1e-3), high))


@st.composite
def trees(
    draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 12, max_roots: int = 3
) -> DraftTree:
    """Trees and forests."""
    n = draw(st.integers(min_nodes, max_nodes))
    roots = draw(st.integers(1, min(n, max_roots)))
    parent, prob = [-1], [1.0]
    for v in range(1, n):
        # Shrinks towards children of node 0; -1 starts another sequence.
        u = draw(st.integers(0, v - 1))
        if parent.count(-1) < roots and draw(st.booleans()):
            u = -1
        parent.append(u)
        prob.append(1.0 if u < 0 else draw(probabilities()))
    return DraftTree.from_conditional(parent, prob)


@st.composite
def routings(
    draw: st.DrawFn,
    n: int,
    max_layers: int = 3,
    max_experts: int = 8,
    max_slots: int = 3,
    residents: bool = True,
) -> ExpertRouting:
    """Routing for ``n`` nodes: padding and duplicates included."""
    n_layers = draw(st.integers(1, max_layers))
    n_experts = draw(st.one_of(st.integers(1, max_experts), st.sampled_from([64, 65])))
    k = draw(st.integers(1, max_slots))
    ids = st.integers(-1, min(n_experts, max_experts + 1) - 1)
    if n_experts >= 64:
        ids = st.one_of(ids, st.integers(62, n_experts - 1))
    flat = draw(st.lists(ids, min_size=n * n_layers * k, max_size=n * n_layers * k))
    experts = np.array(flat, dtype=np.int32).reshape(n, n_layers, k)
    resident = np.zeros((n_layers, n_experts), dtype=np.bool_)
    if residents:
        for cell in draw(st.sets(st.integers(0, n_layers * n_experts - 1), max_size=8)):
            resident.flat[cell] = True
    return ExpertRouting(experts, n_experts, resident)


@st.composite
def node_times(
    draw: st.DrawFn, n: int, n_roots: int, kinds: Sequence[str] = KINDS
) -> float | NDArray[np.float64]:
    """Node times in seconds, of any of ``kinds``; entry ``n_roots`` to ``n`` has a finite one."""
    kind = draw(st.sampled_from(list(kinds)))
    step = draw(durations(0.125, 1.0))
    sizes = np.arange(n + 1, dtype=np.float64)
    if kind == "affine":
        return step
    if kind == "affine-table":
        return sizes * step
    if kind in ("concave", "convex", "arbitrary"):
        rises = draw(st.lists(durations(0.0, 2.0), min_size=n, max_size=n))
        if kind == "arbitrary":
            return np.array([0.0, *rises])
        rises.sort(reverse=kind == "concave")
        return np.concatenate(([0.0], np.cumsum(rises)))
    if kind == "staircase":
        width = draw(st.integers(2, 5))
        return np.ceil(sizes / width) * width * step
    table = sizes * step
    if kind == "budget":
        table[draw(st.integers(n_roots, n)) + 1 :] = math.inf
        return table
    if kind == "holes":
        kept = draw(st.sets(st.integers(n_roots, n), min_size=1))
        return np.where(np.isin(np.arange(n + 1), list(kept)), table, math.inf)
    raise ValueError(f"kind {kind!r} is none of {KINDS}")


@st.composite
def cost_models(
    draw: st.DrawFn,
    n: int,
    n_roots: int,
    n_layers: int,
    n_experts: int,
    kinds: Sequence[str] = KINDS,
) -> CostModel:
    """Cost models for trees of ``n`` nodes."""
    shape = draw(st.sampled_from(EXPERT_TIMES))
    time: Any
    if shape == "scalar":
        time = draw(durations(0.0, 2.0))
    else:
        # A handful of values repeated over the array: enough variety, and it shrinks.
        palette = draw(st.lists(durations(0.0, 2.0), min_size=1, max_size=5))
        count = n_layers if shape == "layer" else n_layers * n_experts
        time = np.resize(np.array(palette), count)
        if shape == "expert":
            time = time.reshape(n_layers, n_experts)
    return CostModel(
        draw(durations(0.125, 4.0)),
        draw(node_times(n, n_roots, kinds)),
        time,
        draw(st.one_of(st.just(0.0), durations(0.0, 0.5))),
    )


@st.composite
def instances(
    draw: st.DrawFn,
    kinds: Sequence[str] = KINDS,
    min_nodes: int = 1,
    max_nodes: int = 12,
    max_roots: int = 3,
) -> Instance:
    """Instances with node times of any of ``kinds``."""
    tree = draw(trees(min_nodes, max_nodes, max_roots))
    routing = draw(routings(tree.n_nodes))
    cost = draw(cost_models(tree.n_nodes, tree.n_roots, routing.n_layers, routing.n_experts, kinds))
    return Instance(tree, routing, cost)


@st.composite
def size_limits(draw: st.DrawFn, instance: Instance) -> int | None:
    """``max_nodes`` values that leave an allowed size, or None."""
    tree = instance.tree
    table = instance.cost_model.node_table(tree.n_nodes)
    least = tree.n_roots + int(np.flatnonzero(np.isfinite(table[tree.n_roots :]))[0])
    return draw(st.one_of(st.none(), st.integers(least, tree.n_nodes + 2)))


def rates() -> st.SearchStrategy[float]:
    """Rates of the surplus, in tokens per second."""
    return st.one_of(st.just(0.0), durations(0.0, 4.0))
