"""The exact choice from one cycle's tree while it grows level by level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..cost import CostModel
from ..expert_union import expert_union
from ..search import TreeSearch
from ..solution import Solution, node_time_at
from .policy import Choice
from .view import DraftView


class LevelSearch:
    """Grows a :class:`specfit_opt.TreeSearch` with the tree of a view.

    Parameters
    ----------
    view : DraftView
    cost : CostModel
        Of a pass without drafting; a table of node times must reach to the largest tree.
    rate : float, optional
        Maximise the surplus at this rate in place of the ratio.

    Attributes
    ----------
    n_nodes : int
        Nodes taken in so far.
    solution : Solution
        The best subtree of these.
    """

    solution: Solution

    def __init__(self, view: DraftView, cost: CostModel, rate: float | None = None) -> None:
        self.n_nodes = 0
        self._view = view
        self._cost = cost
        self._resident = np.array(view.resident)
        n_layers, n_experts = self._resident.shape
        self._time = cost.expert_table(n_layers, n_experts)
        self._drafting = 0.0
        self._search = TreeSearch(cost, n_layers, n_experts, self._resident, rate=rate)

    def extend(self, cost: CostModel | None = None) -> None:
        """Take in what was drafted since the last call, and solve.

        Parameters
        ----------
        cost : CostModel, optional
            Prices that hold from now on, of all nodes.
        """
        view, first = self._view, self.n_nodes
        experts = view.experts(first)
        if cost is not None:
            self._search.reprice(cost)
        drafting = view.draft_time
        self.n_nodes = len(view.parent)
        self.solution = self._search.extend(
            view.parent[first:].astype(np.int32),
            view.path_prob[first:],
            experts,
            drafting - self._drafting,
        )
        self._drafting = drafting

    def advises_another(self, levels: int, acceptance: Sequence[float] | None) -> bool:
        """Return whether another level is worth drafting, see :meth:`TreeSearch.advise`."""
        view = self._view
        return self._search.advise(
            view.level_time, acceptance, levels=levels, frontier=view.frontier
        ).go

    def choice(self) -> Choice:
        """Return what was chosen, with predictions at full prices."""
        nodes = self.solution.nodes
        return Choice(nodes, self.solution.expected_tokens, self.cycle_time(nodes))

    def cycle_time(self, nodes: NDArray[np.int64]) -> float:
        """Return the predicted seconds of the whole cycle if ``nodes`` are verified."""
        compute = self._cost.fixed_time + node_time_at(self._cost, len(nodes))
        return compute + self._drafting + self.load_time(self._view.experts()[nodes])

    def load_time(self, experts: NDArray[np.integer]) -> float:
        """Return the seconds that the union of ``experts``, shape (n, L, k), takes to load."""
        return float(self._time[self._missing(experts)].sum())

    def _missing(self, experts: NDArray[np.integer]) -> NDArray[np.bool_]:
        return expert_union(experts, self._resident.shape[1]) & ~self._resident
