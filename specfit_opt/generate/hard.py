"""Instances built by hand to be hard: NP-hard stars, and ties to the last bit."""

from __future__ import annotations

import math

import numpy as np

from ..cost import CostModel
from ..errors import InvalidInputError
from ..instance import Instance
from ..routing import ExpertRouting
from ..tree import DraftTree
from .realistic import PASS_TIME, node_time_of


def densest_k_subgraph(
    rng: np.random.Generator,
    *,
    nodes: int = 200,
    top_k: int = 8,
    node_time: str = "budget",
    budget: int | None = None,
) -> Instance:
    """Return a star whose leaves are the vertices of a random graph, their experts its edges.

    m leaves then need m * degree experts less one per edge between them, so the best m leaves are
    the densest subgraph of m vertices: NP-hard, and with a random near-regular graph no subset is
    easy to tell from another. The root uses no expert. All leaves have the same probability, which
    add up to 1. Times are such that more leaves always pay, so that a budget (by default 0.3 of
    the nodes) binds far from the sizes that a Lagrangian price can reach: the root and the whole.

    ``top_k`` is the degree, even: the graph is a union of random Hamiltonian cycles (edges that
    coincide are one edge).
    """
    if nodes < 4 or top_k < 2 or top_k % 2:
        raise InvalidInputError(
            f"a densest-k-subgraph star needs nodes >= 4 and an even top_k >= 2 (the degree of "
            f"the graph), got {nodes} and {top_k}"
        )
    n = nodes - 1
    edges = set()
    for _ in range(top_k // 2):
        tour = rng.permutation(n)
        edges |= {(min(a, b), max(a, b)) for a, b in _pairs(tour)}
    experts = np.full((nodes, 1, top_k), -1, dtype=np.int32)
    used = np.zeros(nodes, dtype=np.int64)
    for edge, ends in enumerate(sorted(edges)):
        for vertex in ends:
            experts[vertex + 1, 0, used[vertex + 1]] = edge
            used[vertex + 1] += 1
    return _star(experts, len(edges), node_time, budget)


def min_k_union(
    rng: np.random.Generator,
    *,
    nodes: int = 200,
    experts: int | None = None,
    node_time: str = "budget",
    budget: int | None = None,
) -> Instance:
    """Return a star whose leaves are the edges of a random graph, their experts its vertices.

    The best m leaves are m edges that meet the fewest vertices: minimum k-union on a graph, from
    which the NP-hardness of tables follows. ``experts`` is the number of vertices, by default a
    fifth of the leaves (mean degree 10) but enough to leave half of the pairs unused; the rest is
    as for :func:`densest_k_subgraph`.
    """
    n = nodes - 1
    if experts is None:
        vertices = max(n // 5, math.ceil((1.0 + math.sqrt(1.0 + 16.0 * n)) / 2.0))
    else:
        vertices = experts
    possible = vertices * (vertices - 1) // 2
    if not 1 <= n <= possible:
        raise InvalidInputError(
            f"{vertices} experts have {possible} pairs, but {n} leaves each need another; give "
            "more experts or 2 nodes and more"
        )
    first, second = np.triu_indices(vertices, k=1)
    chosen = np.sort(rng.choice(possible, size=n, replace=False))
    ids = np.full((nodes, 1, 2), -1, dtype=np.int32)
    ids[1:, 0, 0] = first[chosen]
    ids[1:, 0, 1] = second[chosen]
    return _star(ids, vertices, node_time, budget)


def ties(
    rng: np.random.Generator,
    *,
    nodes: int = 60,
    layers: int = 5,
    top_k: int = 3,
    node_time: str = "affine",
    budget: int | None = None,
) -> Instance:
    """Return an instance where every closed set that holds nodes 0 and 1 has the same ratio.

    Below node 1 (path probability 1/2) hang four chains of path probability 1/8 all along. Every
    node has experts of its own, as many as any other, and every number is a dyadic fraction: each
    node of a chain adds 1/8 token for 2^-8 s, exactly the optimal rate of 32 tokens per second. So
    the optimum is nodes 0 and 1 where the fewest nodes win a tie, in exact arithmetic too, and any
    error in a comparison shows. With another node_time than affine, many sets tie still, size by
    size. The seed only shuffles which experts are whose.
    """
    if nodes < 2:
        raise InvalidInputError(f"ties needs at least 2 nodes, got {nodes}")
    parent = [-1, 0] + [1 if v < 6 else v - 4 for v in range(2, nodes)]
    prob = [1.0, 0.5] + [0.125] * (nodes - 2)
    experts = rng.permutation(nodes * top_k).reshape(nodes, 1, top_k)
    # m experts and the node itself cost 2^-8 s together; both shares stay dyadic.
    m = layers * top_k
    parts = 1 << m.bit_length()
    unit = 2.0**-8 / parts
    tree = DraftTree(parent, prob)
    cost = CostModel(
        1.5 / 32 - 2.0**-7,
        node_time_of(node_time, tree, unit * (parts - m), budget),
        unit,
    )
    routing = ExpertRouting(np.repeat(experts, layers, axis=1), nodes * top_k)
    return Instance(tree, routing, cost)


def _star(
    experts: np.ndarray, n_experts: int, node_time: str, budget: int | None
) -> Instance:  # leaves of equal probability, adding up to 1
    nodes = len(experts)
    tree = DraftTree([-1] + [0] * (nodes - 1), [1.0] + [1.0 / (nodes - 1)] * (nodes - 1))
    if node_time == "budget" and budget is None:
        budget = max(1, math.ceil(0.3 * nodes))
    cost = CostModel(
        PASS_TIME,
        node_time_of(node_time, tree, PASS_TIME / (100 * nodes), budget),
        # All experts together take a quarter of the fixed time, while all leaves double P.
        PASS_TIME / (4 * n_experts),
    )
    return Instance(tree, ExpertRouting(experts, n_experts), cost)


def _pairs(tour: np.ndarray) -> list[tuple[int, int]]:
    ring = tour.tolist()
    return list(zip(ring, ring[1:] + ring[:1], strict=True))
