"""S2-MoE: the tree grows while predicted acceptance pays for the experts that a node adds."""

from __future__ import annotations

import math

import numpy as np

from ..cost import CostModel
from ..expert_union import expert_union
from ..methods.s2moe import Expansion, element_numbers
from ..solution import node_time_at
from .drafting import DraftShape, choice_of, for_sizes
from .policy import Choice, Outcome, Policy, PolicyKind
from .view import DraftView

#: Cycles after which what was seen of an expert's time has lost 63 % of its weight.
_MEMORY = 64.0


class S2Moe(Policy):
    """Take nodes that save more of a plain step than their new experts take, level by level.

    Parameters
    ----------
    levels, top_k, width : int
        Most levels drafted, children of each expanded node, and nodes expanded per level. Eight
        levels as published; how wide the rule may grow is not.

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.

    Notes
    -----
    The rule is :func:`specfit_opt.methods.s2moe.select`. A level is drafted as long as a node that
    it would extend was taken. An expert is priced at what the experts of a pass took on average so
    far, those in fast memory included, whichever it is: published is one figure for each machine
    and size of memory. A plain step is a pass over the root with its experts at that price, and a
    node pays its share of a level's drafting. Left out are the reuse-aware gating, which changes
    the target's routing and so its text, and the self-drafter; routing is what the decode's
    predictor predicts.
    """

    name = "s2moe"

    def __init__(self, *, levels: int = 8, top_k: int = 4, width: int = 4) -> None:
        self.shape = DraftShape(levels, top_k, width)
        self._waited = self._used = 0.0

    def fresh(self) -> Policy:
        """Return the policy without what it has learned."""
        return type(self)(
            levels=self.shape.levels, top_k=self.shape.top_k, width=self.shape.width
        )

    def choose(self, view: DraftView) -> Choice:
        """Return the nodes that pay."""
        shape = self.shape
        root = np.zeros(1, dtype=np.int64)
        if view.max_levels < 1:
            return choice_of(view, root)
        cost = for_sizes(view.cost_model, shape.most_nodes)
        most = _largest_size(cost, shape.most_nodes)
        per_expert, n_experts = self._expert_time(view, cost), view.resident.shape[1]
        expansion = Expansion(np.full(view.resident.size, per_expert))
        step_time, first = math.nan, 0
        while view.levels < shape.levels and (
            not first or not expansion.chosen.keys().isdisjoint(view.frontier.tolist())
        ):
            drafting = view.level_time / shape.width
            if not view.grow(shape.top_k, shape.width):
                break
            uses = element_numbers(view.experts(first), n_experts)
            if not first:
                expansion.take(0, uses[0])
                used = np.count_nonzero(uses[0] >= 0)
                step_time = cost.fixed_time + node_time_at(cost, 1) + used * per_expert
                uses, first = uses[1:], 1
            path_prob = view.drafter_path_prob[first:]
            order = np.argsort(-path_prob, kind="stable")
            expansion.offer(
                (order + first).tolist(),
                view.parent[first:][order],
                path_prob[order] * step_time - drafting,
                uses[order],
            )
            expansion.grow(most)
            first = len(view.parent)
        return choice_of(view, np.array(sorted(expansion.chosen)) if first else root)

    def observe(self, outcome: Outcome) -> None:
        """Learn what an expert takes on average, in fast memory or not."""
        experts = outcome.experts
        keep = 1.0 - 1.0 / _MEMORY
        self._waited = keep * self._waited + outcome.transfer_seconds
        used = np.count_nonzero(expert_union(experts, int(experts.max(initial=0)) + 1))
        self._used = keep * self._used + used

    def _expert_time(self, view: DraftView, cost: CostModel) -> float:
        if self._used:
            return self._waited / self._used
        resident = view.resident
        time = cost.expert_table(*resident.shape)
        return float(np.where(resident, cost.resident_time, time).mean())


def _largest_size(cost: CostModel, n_nodes: int) -> int:
    """Return the largest number of nodes up to which all sizes are allowed."""
    allowed = np.isfinite(cost.node_table(n_nodes)[1:])
    return n_nodes if allowed.all() else int(np.argmin(allowed))


KIND = PolicyKind(
    name="s2moe",
    make=S2Moe,
    summary="nodes whose acceptance pays for the experts that they add, at one price for each",
    source="S2-MoE, arXiv 2608.15018, section 4.1",
)
