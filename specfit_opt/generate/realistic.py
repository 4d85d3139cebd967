"""Instances with the shape, routing and times of real models on real machines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..cost import CostModel
from ..errors import InvalidInputError
from ..instance import Instance
from ..tree import DraftTree
from .node_times import NODE_TIMES
from .routes import correlated_routing
from .shapes import ModelShape
from .trees import drafted_tree

#: Bytes per second that PCIe 5.0 x16 gives in practice (63 GB/s on paper).
BANDWIDTH = 50e9
#: Seconds of a pass that do not depend on its tokens: attention, head, kernel launches.
PASS_TIME = 0.025
#: Seconds of the drafter per level.
DRAFT_TIME = 0.0012
#: Seconds per token of a pass.
TOKEN_TIME = 100e-6


def realistic(
    rng: np.random.Generator,
    *,
    shape: ModelShape,
    grow: Callable[[np.random.Generator, int, int], DraftTree] = drafted_tree,
    nodes: int = 60,
    roots: int = 1,
    layers: int | None = None,
    experts: int | None = None,
    top_k: int | None = None,
    node_time: str = "affine",
    budget: int | None = None,
    resident: float = 0.5,
    overlap: float = 1 / 3,
    skew: float = 1.2,
    bandwidth: float = BANDWIDTH,
    resident_time: float = 0.0,
    token_time: float = TOKEN_TIME,
    time_spread: float = 0.0,
) -> Instance:
    """Return an instance of a model's shape, offloaded behind a link.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : ModelShape
        Gives ``layers``, ``experts``, ``top_k`` where they are not given, and the expert's size.
    grow : callable
        Grows the tree from ``rng``, ``nodes`` and ``roots``.
    nodes, roots : int
    layers, experts, top_k : int, optional
    node_time : str
        A name in :data:`.NODE_TIMES`.
    budget : int, optional
        Largest size allowed with ``node_time="budget"``; by default a sixth of the nodes, at most
        60 (what EAGLE verifies) and at least the roots.
    resident, overlap, skew : float
        See :func:`.correlated_routing`.
    bandwidth : float
        Bytes per second of the link.
    resident_time : float
        Seconds per resident expert.
    token_time : float
        Seconds per node with ``node_time="affine"``; the other kinds scale with it.
    time_spread : float
        Standard deviation of the logarithm of the experts' times: 0 when all experts of a layer
        are alike, positive for mixed precision or experts on several devices.
    """
    tree = grow(rng, nodes, roots)
    layers = shape.n_layers if layers is None else layers
    experts = shape.n_experts if experts is None else experts
    top_k = shape.top_k if top_k is None else top_k
    if top_k > experts:
        raise InvalidInputError(
            f"top_k = {top_k} exceeds experts = {experts}; a token takes distinct experts"
        )
    if not 0.0 < bandwidth < np.inf:
        raise InvalidInputError(f"bandwidth must be positive bytes per second, got {bandwidth!r}")
    routing = correlated_routing(
        rng,
        tree,
        layers=layers,
        experts=experts,
        top_k=top_k,
        skew=skew,
        overlap=overlap,
        resident=resident,
    )
    expert_time: float | NDArray[np.float64] = shape.expert_bytes / bandwidth
    if time_spread:
        expert_time = expert_time * rng.lognormal(0.0, time_spread, size=(layers, experts))
    cost = CostModel(
        PASS_TIME + DRAFT_TIME * int(tree.depth.max()),
        node_time_of(node_time, tree, token_time, budget),
        expert_time,
        resident_time,
    )
    return Instance(tree, routing, cost)


def node_time_of(
    name: str, tree: DraftTree, slope: float, budget: int | None
) -> float | NDArray[np.float64]:
    """Return a node time of kind ``name`` for ``tree``; ``slope`` in seconds per node."""
    n, roots = tree.n_nodes, tree.n_roots
    kind = NODE_TIMES.find(name)
    if budget is None:
        budget = max(roots, min(n // 6, 60))
    elif name != "budget":
        raise InvalidInputError(f"budget needs node_time='budget', not {name!r}")
    elif not roots <= budget <= n:
        raise InvalidInputError(
            f"budget must be from {roots} (the roots) to {n} (all nodes), got {budget}"
        )
    return kind.build(n, slope, budget)
