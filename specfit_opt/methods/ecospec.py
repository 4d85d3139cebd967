"""EcoSpec's rule: path probability per newly activated expert, for a fixed budget."""

from __future__ import annotations

import numpy as np

from ..checks import Real, Whole
from ..expert_union import ExpertUnion, weighted
from ..instance import Instance
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, mask_of, nearest_allowed
from .method import Method

_EPS = Real(1e-12, 1e12)


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    budget: int = 4,
    eps: float = 1.0,
) -> Solution:
    """Add the path of highest ``p / (newly activated experts + eps)`` until the budget is spent.

    A candidate is a path from the chosen set to a node; p is that node's path probability, and the
    experts counted, over all layers, are those of the whole path that the chosen set does not
    activate, resident or not: the paper has all weights in fast memory. A longer path never scores
    above its own beginning, since p does not rise along it and the count does not fall; so, the
    earlier node coming first among equals, paths of one node are all that has to be looked at.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`. ``rate`` only changes what is reported; ``time_limit`` is
        not needed.
    budget : int
        Nodes to add to the roots, over all sequences of a forest; at least 0. The paper verifies 4.
    eps : float
        Positive, from 1e-12 to 1e12; keeps the score finite for a path that activates nothing new.

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
    O(n L k) time per node added. The rule of EcoSpec (arXiv 2607.12696), its routing predictor
    aside: it knows how many experts a path adds, but neither what they cost nor when to stop.
    """
    budget = Whole(0)(budget, "option budget")
    eps = _EPS(eps, "option eps")
    tree, routing = instance.tree, instance.routing
    union = ExpertUnion(tree, routing, weighted(routing, np.ones(routing.resident.shape)))
    order = tree.roots.tolist()
    union.add(order)
    candidates = mask_of(instance, [c for v in order for c in tree.children[v]])
    size = nearest_allowed(allowed_sizes(instance, max_nodes), tree.n_roots + budget)
    while len(order) < size:
        score = np.where(candidates, tree.path_prob / (union.added() + eps), -1.0)
        node = int(np.argmax(score))
        order.append(node)
        union.add([node])
        candidates[node] = False
        candidates[list(tree.children[node])] = True
    return build_solution(
        instance,
        mask_of(instance, order),
        rate=rate,
        method="ecospec",
        stats={"budget": budget, "eps": eps},
    )


METHOD = Method(
    name="ecospec",
    select=select,
    summary="path probability per newly activated expert, fixed budget",
    source="EcoSpec, arXiv 2607.12696",
)
