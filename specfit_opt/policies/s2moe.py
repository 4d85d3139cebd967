"""S2-MoE: the tree grows while predicted acceptance pays for the experts that a node adds."""

from __future__ import annotations

import math

import numpy as np

from ..cost import CostModel
from ..expert_union import expert_union
from ..solution import node_time_at
from ..solve import solve_instance
from .drafting import DraftShape, choice_of, drafted_tree, for_sizes, with_routing
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
        chosen = np.zeros(1, dtype=np.int64)
        cost = for_sizes(view.cost_model, self.shape.most_nodes)
        per_expert = self._expert_time(view, cost)
        step_time = math.nan
        while view.levels < self.shape.levels and np.isin(view.frontier, chosen).any():
            share = view.level_time / self.shape.width if view.max_levels else 0.0
            if not view.grow(self.shape.top_k, self.shape.width):
                break
            instance = with_routing(view, drafted_tree(view), cost)
            if math.isnan(step_time):
                used = float(np.count_nonzero(instance.routing.experts[0] >= 0))
                step_time = cost.fixed_time + node_time_at(cost, 1) + used * per_expert
            chosen = solve_instance(
                instance,
                method="s2moe",
                step_time=step_time,
                new_expert_time=per_expert,
                draft_time=share,
            ).nodes
        return choice_of(view, chosen)

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


KIND = PolicyKind(
    name="s2moe",
    make=S2Moe,
    summary="nodes whose acceptance pays for the experts that they add, at one price for each",
    source="S2-MoE, arXiv 2608.15018, section 4.1",
)
