"""One selection problem: a tree, its routing and a cost model that fit together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cost import CostModel
from .errors import InvalidInputError
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
        number of roots up is forbidden, or the time of a pass could be zero.
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


def check_sizes(cost: CostModel, n_roots: int, n_nodes: int) -> None:
    """Check that some subtree size is allowed and that every pass takes time.

    Raises
    ------
    InvalidInputError
        If the node_time table is too short, forbids every size from ``n_roots`` to ``n_nodes``, or
        allows a size whose pass could take no time at all.
    """
    least = cost.least_node_time(n_roots, n_nodes)
    if least == math.inf:
        raise InvalidInputError(
            f"node_time forbids every size from {n_roots} (the roots alone) to {n_nodes} "
            "(the whole tree); allow at least one"
        )
    if cost.fixed_time + least <= 0.0:
        raise InvalidInputError(
            "fixed_time and node_time are both zero, so throughput has no bound; "
            "give the fixed time of a pass in seconds"
        )
