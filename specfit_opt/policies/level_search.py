"""The exact choice from one cycle's tree while it grows level by level."""

from __future__ import annotations

from typing import Any

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
    waste_share : ndarray of float64, shape (L,), optional
        Charge this share of loads that no committed token needs, and no others; see
        :class:`specfit_opt.TreeSearch`.
    node_charge : float
        Seconds that the search charges for every node beyond its time.

    Attributes
    ----------
    n_nodes : int
        Nodes taken in so far.
    solution : Solution
        The best subtree of these.
    """

    solution: Solution

    def __init__(
        self,
        view: DraftView,
        cost: CostModel,
        rate: float | None = None,
        *,
        waste_share: NDArray[np.float64] | None = None,
        node_charge: float = 0.0,
    ) -> None:
        self.n_nodes = 0
        self._view = view
        self._cost = cost
        self._resident = np.array(view.resident)
        self._resident.flags.writeable = False
        self._drafting = 0.0
        n_layers, n_experts = self._resident.shape
        self._search = TreeSearch(
            _with_node_charge(cost, node_charge),
            n_layers,
            n_experts,
            self._resident,
            rate=rate,
            waste_share=waste_share,
        )

    def extend(self) -> None:
        """Take in what was drafted since the last call, and solve."""
        view, first = self._view, self.n_nodes
        experts = view.experts(first)
        drafting = view.draft_time
        self.n_nodes = len(view.parent)
        self.solution = self._search.extend(
            view.parent[first:].astype(np.int32),
            view.path_prob[first:],
            experts,
            drafting - self._drafting,
        )
        self._drafting = drafting

    def may_gain(self, levels: int) -> bool:
        """Return whether some continuation could win, see :meth:`TreeSearch.advise`."""
        view = self._view
        return self._search.advise(view.level_time, levels=levels, frontier=view.frontier).go

    def expects_gain(self) -> bool:
        """Return whether another level is expected to win, at the acceptance seen so far."""
        view = self._view
        return self._search.expects_gain(view.level_time, view.acceptance, frontier=view.frontier)

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
        return load_time(self._cost.expert_time, self._resident, experts)

    def realised_load_time(self, experts: NDArray[np.integer]) -> float:
        """Return the seconds that the union of true ``experts``, shape (n, L, k), took to load."""
        return load_time(self._view.load_time, self._resident, experts)

    def waste_time(self, nodes: NDArray[np.int64]) -> float:
        """Return the seconds of the nodes' loads that no committed token is expected to use."""
        experts = self._view.experts()[nodes]
        return load_time(self._cost.expert_time, self._resident, experts, self._search.waste())


def load_time(
    expert_time: float | NDArray[np.float64],
    resident: NDArray[np.bool_],
    experts: NDArray[np.integer],
    weight: NDArray[np.float64] | None = None,
) -> float:
    """Return the seconds that the union of ``experts``, shape (n, L, k), takes to load.

    ``expert_time`` is as in a :class:`specfit_opt.CostModel`. With ``weight``, shape (L, E), each
    load counts that many times.
    """
    loads: NDArray[Any] = expert_union(experts, resident.shape[1]) & ~resident
    if weight is not None:
        loads = loads * weight
    if isinstance(expert_time, float) or expert_time.ndim == 2:
        return float((loads * expert_time).sum())
    return float(loads.sum(axis=1) @ expert_time)


def _with_node_charge(cost: CostModel, charge: float) -> CostModel:
    if not charge:
        return cost
    time = cost.node_time
    more = charge if isinstance(time, float) else charge * np.arange(len(time))
    return CostModel(cost.fixed_time, time + more, cost.expert_time, cost.resident_time)
