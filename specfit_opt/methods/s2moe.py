"""S2-MoE's rule: take a node while its predicted acceptance pays for the experts that it adds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..expert_union import expert_prices, weighted
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
    positive utility are added until there is none. What is new about a node only falls as S grows,
    so that the set does not depend on the order; it is that of falling path probability.

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
        if there is none, nodes are added by path probability up to the smallest allowed one.

    Raises
    ------
    InvalidInputError
        If a time is negative or not finite.

    Notes
    -----
    O(n L k) time for each time that the candidates are gone through. The expansion rule of S2-MoE
    (arXiv 2608.15018, section 4.1, equations 2 and 3). Left out are its reuse-aware gating, which
    changes what the target model computes, and its drafter, the target with fewer experts per
    token, whose own routing is its prediction: here the caller predicts. The published rule does
    not look at which experts are in fast memory, only at what one takes on average, nor at the time
    of the pass as a whole.
    """
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    if new_expert_time is None:
        new_expert_time = float(expert_prices(instance).sum()) / routing.resident.size
    per_expert: float = SECONDS(new_expert_time, "option new_expert_time")
    if step_time is not None:
        step: float = SECONDS(step_time, "option step_time")
    else:
        users = tree.n_nodes * routing.n_scenarios
        used = np.count_nonzero(routing.experts >= 0) / users
        one = cost.node_table(1)[1]
        step = cost.fixed_time + (float(one) if one < np.inf else 0.0) + used * per_expert
    drafted: float = SECONDS(draft_time, "option draft_time")

    allowed = allowed_sizes(instance, max_nodes)
    expansion = Expansion(weighted(routing, np.full(routing.resident.shape, per_expert)))
    uses = _elements(instance)
    for root in tree.roots.tolist():
        expansion.take(root, uses[root])
    order = [v for v in tree.prefix_order().tolist() if tree.parent[v] >= 0]
    expansion.offer(order, tree.parent[order], tree.path_prob[order] * step - drafted, uses[order])
    expansion.grow(most=int(allowed.nonzero()[0][-1]), least=int(allowed.argmax()))
    nodes = list(expansion.chosen)
    return build_solution(
        instance,
        mask_of(instance, nodes[: nearest_allowed(allowed, len(nodes))]),
        rate=rate,
        method="s2moe",
        stats={"step_time": step, "new_expert_time": per_expert, "draft_time": drafted},
    )


class Expansion:
    """The set of nodes that pay, while it grows.

    Parameters
    ----------
    price : ndarray of float64, shape (e,)
        Seconds that each expert takes when it is new; see :meth:`take` for their numbers.

    Attributes
    ----------
    chosen : dict
        The nodes taken, in this order.
    """

    def __init__(self, price: NDArray[np.float64]) -> None:
        self._left = np.append(price, 0.0)  # the last one takes the padding, -1
        self.chosen: dict[int, None] = {}
        self._waiting: list[tuple[int, int, float, NDArray[np.int64]]] = []

    def take(self, node: int, uses: NDArray[np.int64]) -> None:
        """Take a node that uses the experts of these numbers; -1 pads."""
        self.chosen[node] = None
        self._left[uses] = 0.0

    def offer(
        self,
        nodes: Iterable[int],
        parents: NDArray[np.integer],
        worth: NDArray[np.float64],
        uses: NDArray[np.int64],
    ) -> None:
        """Add candidates, each with the seconds that it saves if it loads nothing."""
        self._waiting += zip(nodes, parents.tolist(), worth.tolist(), uses, strict=True)

    def grow(self, most: int, least: int = 0) -> None:
        """Take candidates until none pays, at most ``most`` nodes in all; in any case ``least``."""
        before = -1
        while len(self.chosen) != before:
            before = len(self.chosen)
            left = []
            for candidate in self._waiting:
                node, parent, worth, uses = candidate
                if (
                    parent in self.chosen
                    and len(self.chosen) < most
                    and worth > self._left[uses].sum()
                ):
                    self.take(node, uses)
                else:
                    left.append(candidate)
            self._waiting = left
            if len(self.chosen) == before and before < least:
                ready = (c for c in self._waiting if c[1] in self.chosen)
                candidate = next(ready)
                self._waiting.remove(candidate)
                self.take(candidate[0], candidate[3])


def _elements(instance: Instance) -> NDArray[np.int64]:
    """Return the numbers of the experts that each node uses over all layers and scenarios."""
    routing = instance.routing
    ids = routing.experts.astype(np.int64)
    if routing.scenario_weights is not None:
        ids = np.moveaxis(ids, 0, 1)
    ids = ids.reshape(instance.tree.n_nodes, -1, ids.shape[-1])
    return element_numbers(ids, routing.n_experts)


def element_numbers(experts: NDArray[np.integer], n_experts: int) -> NDArray[np.int64]:
    """Return experts by one number over all layers: shape (n, L, k) to (n, L * k); -1 pads."""
    first = np.arange(experts.shape[1], dtype=np.int64)[:, None] * n_experts
    numbers: NDArray[np.int64] = np.where(experts < 0, -1, experts + first)
    return numbers.reshape(len(experts), -1)


METHOD = Method(
    name="s2moe",
    select=select,
    summary="nodes whose acceptance pays for the experts that they add, at one price for each",
    source="S2-MoE, arXiv 2608.15018, section 4.1",
)
