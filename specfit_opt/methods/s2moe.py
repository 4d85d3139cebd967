"""S2-MoE's rule: take a node while its predicted acceptance pays for the experts that it adds."""

from __future__ import annotations

import numpy as np

from ..expert_union import ExpertUnion, expert_prices, weighted
from ..instance import Instance
from ..limits import SECONDS
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, mask_of, nearest_allowed
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    step_time: float | None = None,
    new_expert_time: float | None = None,
    draft_time: float = 0.0,
) -> Solution:
    """Add nodes as long as one of them saves more time than it is predicted to cost.

    The utility of a node v beyond the chosen set S is ``p(v) T - (d + lambda |E(v) - E(S)|)``: an
    accepted token saves a step of plain decoding of T seconds, drafting it took d, and each expert
    that no node of S uses takes lambda, whichever it is and wherever its weights are. Nodes of
    positive utility are added, the one of highest utility first, until there is none. What is new
    about a node only falls as S grows, so the set does not depend on the order.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`. ``rate`` only changes what is reported; ``time_limit`` is
        not needed.
    step_time : float, optional
        T, seconds of an average step of plain decoding; default the time of a pass over one node,
        with ``new_expert_time`` for each of the experts that a node uses on average.
    new_expert_time : float, optional
        lambda, seconds that one more expert takes on average, as measured on the machine with its
        cache; default the mean over all experts of the instance, resident ones included.
    draft_time : float
        d, seconds of drafting one node; 0 for a tree that is there already.

    Returns
    -------
    Solution
        A forbidden size is cut back in the order of addition to the largest allowed one below it;
        if there is none, nodes of the highest utility are added up to the smallest allowed one.

    Raises
    ------
    InvalidInputError
        If a time is negative or not finite.

    Notes
    -----
    O(n L k) time per node added. The expansion rule of S2-MoE (arXiv 2608.15018, section 4.1,
    equations 2 and 3). Left out are its reuse-aware gating, which changes what the target model
    computes, and its drafter, the target with fewer experts per token, whose own routing is its
    prediction: here the caller predicts. The published rule does not look at which experts are in
    fast memory, only at what one takes on average, nor at the time of the pass as a whole.
    """
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    if new_expert_time is None:
        new_expert_time = float(expert_prices(instance).sum()) / routing.resident.size
    per_expert: float = SECONDS(new_expert_time, "option new_expert_time")
    if step_time is None:
        users = tree.n_nodes * routing.n_scenarios
        used = np.count_nonzero(routing.experts >= 0) / users
        step_time = cost.fixed_time + cost.least_node_time(1, 1) + used * per_expert
    step: float = SECONDS(step_time, "option step_time")
    drafted: float = SECONDS(draft_time, "option draft_time")

    union = ExpertUnion(tree, routing, weighted(routing, np.ones(routing.resident.shape)))
    order = tree.roots.tolist()
    union.add(order)
    candidates = mask_of(instance, [c for v in order for c in tree.children[v]])
    gain = tree.path_prob * step - drafted
    allowed = allowed_sizes(instance, max_nodes)
    least, most = int(allowed.argmax()), int(allowed.nonzero()[0][-1])
    while candidates.any() and len(order) < most:
        utility = np.where(candidates, gain - per_expert * union.added(), -np.inf)
        node = int(np.argmax(utility))
        if utility[node] <= 0.0 and len(order) >= least:
            break
        order.append(node)
        union.add([node])
        candidates[node] = False
        candidates[list(tree.children[node])] = True
    size = nearest_allowed(allowed, len(order))
    return build_solution(
        instance,
        mask_of(instance, order[:size]),
        rate=rate,
        method="s2moe",
        stats={"step_time": step, "new_expert_time": per_expert, "draft_time": drafted},
    )


METHOD = Method(
    name="s2moe",
    select=select,
    summary="nodes whose acceptance pays for the experts that they add, at one price for each",
    source="S2-MoE, arXiv 2608.15018, section 4.1",
)
