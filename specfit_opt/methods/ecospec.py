"""EcoSpec's rule: path probability per newly activated expert, for a fixed budget."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..instance import Instance
from ..solution import Solution, build_solution
from ._options import choice_option, integer_option
from ._sizes import allowed_sizes, mask_of, nearest_allowed
from ._union import ExpertUnion
from .registry import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    budget: int = 4,
    count: str = "activated",
    eps: float = 1.0,
) -> Solution:
    """Add the path of highest ``p / (newly activated experts + eps)`` until the budget is spent.

    A candidate is any node that is not chosen, together with its ancestors that are not; p is its
    path probability, and the experts counted are those of the whole path, over all layers, that
    the chosen set does not activate. Paths longer than what is left of the budget are passed over.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`. ``rate`` only changes what is reported; ``time_limit`` is
        not needed.
    budget : int
        Nodes to add to the roots, over all sequences of a forest; at least 0. The paper verifies 4.
    count : {"activated", "missing"}
        ``"activated"`` counts every expert that is not activated yet, resident or not, as the
        paper does with all weights in fast memory. ``"missing"`` leaves out the resident ones,
        which suits offloading.
    eps : float
        Positive and finite; keeps the score finite for a path that activates nothing new.

    Returns
    -------
    Solution
        Among equal scores the earlier node comes first. A forbidden size is cut back in the order
        of addition to the largest allowed one below it; if there is none, the set grows by the
        same rule, past the budget, to the smallest allowed one.

    Raises
    ------
    InvalidInputError
        If an option is out of range.

    Notes
    -----
    O(n L k) time per path added. The rule of EcoSpec (arXiv 2607.12696), its routing predictor
    aside: it knows how many experts a path adds, but neither what they cost nor when to stop.
    """
    budget = integer_option(budget, "budget", 0)
    count = choice_option(count, "count", ("activated", "missing"))
    eps = _checked_eps(eps)
    tree, routing = instance.tree, instance.routing
    if count == "activated":
        weight = np.ones(routing.n_layers * routing.n_experts)
    else:
        weight = (~routing.resident).reshape(-1).astype(np.float64)
    union = ExpertUnion(tree, routing, weight)
    order = tree.roots.tolist()
    union.add(order)
    chosen = mask_of(instance, order)
    allowed = allowed_sizes(instance, max_nodes)
    rule_size = min(tree.n_roots + budget, tree.n_nodes)
    size = nearest_allowed(allowed, rule_size)
    # Cutting back must not change the order of addition, so the rule's own budget holds until it
    # is spent, and only then the larger size that a forbidden table may call for.
    for limit in (rule_size, size):
        while len(order) < limit:
            path = _best_path(instance, union, chosen, limit - len(order), eps)
            order += path
            union.add(path)
            chosen[path] = True
    return build_solution(
        instance,
        mask_of(instance, order[:size]),
        rate=rate,
        method="ecospec",
        stats={"budget": budget, "count": count, "eps": eps},
    )


def _best_path(
    instance: Instance, union: ExpertUnion, chosen: NDArray[np.bool_], room: int, eps: float
) -> list[int]:
    tree = instance.tree
    steps = np.zeros(tree.n_nodes, dtype=np.int64)  # nodes of the path that are not chosen
    for v, u in enumerate(tree.parent.tolist()):
        if not chosen[v]:
            steps[v] = steps[u] + 1
    score = tree.path_prob / (union.added_by_path() + eps)
    score[chosen | (steps > room)] = -1.0
    node = int(np.argmax(score))
    return tree.path(node)[-int(steps[node]) :]


def _checked_eps(value: float) -> float:
    try:
        eps = float(value)
    except (TypeError, ValueError):
        eps = math.nan
    if not 0.0 < eps < math.inf:
        raise InvalidInputError(f"option eps must be positive and finite, got {value!r}")
    return eps


METHOD = Method(
    name="ecospec",
    select=select,
    summary="path probability per newly activated expert, fixed budget",
    source="EcoSpec, arXiv 2607.12696",
)
