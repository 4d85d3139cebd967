"""One selection problem: a tree, its routing and a cost model that fit together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import Whole
from .cost import CostModel
from .errors import InvalidInputError
from .limits import LEAST_PASS
from .routing import ExpertRouting
from .tree import DraftTree


@dataclass(frozen=True, eq=False)
class Instance:
    """A tree, its routing and a cost model, checked against each other.

    Parameters
    ----------
    tree : DraftTree
    routing : ExpertRouting
    cost_model : CostModel
    name : str, optional
        A label for tables and messages.

    Raises
    ------
    InvalidInputError
        If the three disagree on the number of nodes, layers or experts, every size from the
        number of roots up is forbidden, or a pass could take less than 1e-12 seconds.
    """

    tree: DraftTree
    routing: ExpertRouting
    cost_model: CostModel
    name: str = ""

    def __post_init__(self) -> None:
        tree, routing, cost = self.tree, self.routing, self.cost_model
        if not (
            isinstance(tree, DraftTree)
            and isinstance(routing, ExpertRouting)
            and isinstance(cost, CostModel)
        ):
            raise InvalidInputError(
                "expected a DraftTree, an ExpertRouting and a CostModel in this order, got "
                f"{type(tree).__name__}, {type(routing).__name__} and {type(cost).__name__}"
            )
        if routing.n_nodes != tree.n_nodes:
            raise InvalidInputError(
                f"the tree has {tree.n_nodes} nodes but the routing has {routing.n_nodes}"
            )
        cost.require_experts(routing.n_layers, routing.n_experts)
        check_sizes(cost, tree.n_roots, tree.n_nodes)

    def kernel_prices(self) -> tuple[NDArray[np.bool_], NDArray[np.float64], float]:
        """Return ``resident``, ``expert_time`` and ``resident_time`` as the kernel takes them.

        Each layer of each scenario is a layer to the kernel; what its experts cost is weighted
        with the scenario's probability.

        Returns
        -------
        resident : ndarray of bool, shape (M * L, E)
        expert_time : ndarray of float64, shape (M * L,) or (M * L, E)
        resident_time : float
        """
        routing, cost = self.routing, self.cost_model
        time = cost.kernel_expert_time(routing.n_layers, routing.n_experts)
        weights = routing.scenario_weights
        if weights is None:
            return routing.resident, time, cost.resident_time
        resident, resident_time = routing.resident, cost.resident_time * float(weights[0])
        if cost.resident_time > 0.0 and (weights != weights[0]).any():
            # The kernel has one price for all resident experts, so here they count as missing.
            time = cost.expert_table(routing.n_layers, routing.n_experts)
            time = np.where(resident, cost.resident_time, time)
            resident, resident_time = np.zeros_like(resident), 0.0
        weighted = np.multiply.outer(weights, time).reshape(-1, *time.shape[1:])
        return np.tile(resident, (len(weights), 1)), weighted, resident_time


def check_sizes(cost: CostModel, n_roots: int, n_nodes: int) -> None:
    """Check that some subtree size is allowed and that every pass takes time.

    Raises
    ------
    InvalidInputError
        If the node_time table is too short, forbids every size from ``n_roots`` to ``n_nodes``, or
        allows a size whose pass could take less than 1e-12 seconds.
    """
    least = cost.least_node_time(n_roots, n_nodes)
    if least == math.inf:
        raise InvalidInputError(
            f"node_time forbids every size from {n_roots} (the roots alone) to {n_nodes} "
            "(the whole tree); allow at least one"
        )
    shortest = cost.fixed_time + least
    if shortest <= 0.0:
        raise InvalidInputError(
            "fixed_time and node_time are both zero, so throughput has no bound; "
            "give the fixed time of a pass in seconds"
        )
    if shortest < LEAST_PASS:
        raise InvalidInputError(
            f"fixed_time and node_time of an allowed size add up to {shortest} seconds; a pass "
            f"must take at least {LEAST_PASS:g}"
        )


def checked_max_nodes(max_nodes: Any, instance: Instance) -> int:
    """Return ``max_nodes``, at most n, checked to leave room for the roots and a size allowed."""
    n_roots = instance.tree.n_roots
    checked: int = Whole(n_roots, math.inf)(max_nodes, "max_nodes, which counts the roots,")
    most = min(checked, instance.tree.n_nodes)
    time = instance.cost_model.node_time
    if not isinstance(time, float) and not (time[n_roots : most + 1] < math.inf).any():
        raise InvalidInputError(
            f"node_time forbids every size from {n_roots} to max_nodes = {max_nodes}"
        )
    return most
