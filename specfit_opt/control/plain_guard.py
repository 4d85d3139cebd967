"""Holds speculation to what plain decoding would have taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..caches import CACHE_RULES, SimulatedCache
from ..cost import CostModel
from ..expert_union import expert_union
from ..solution import node_time_at
from .plain_time import PlainTime
from .speculation_budget import SpeculationBudget

if TYPE_CHECKING:
    from ..policies import DraftView, Outcome

#: Cycles after which what was seen of the wait for an expert has lost 63 % of its weight.
_MEMORY = 64.0
#: A cycle counts as at most this many plain passes slower than it should be: the rest is a stall.
_STALL = 2.0


@dataclass(frozen=True, eq=False)
class UnneededLoads:
    """Unneeded loads that may still be repaid.

    Attributes
    ----------
    unused : ndarray of bool, shape (L, E)
        Experts of unneeded loads that may yet be used.
    repaid : ndarray of float64, shape (L,)
        Share of a load that each of them is expected to save.
    """

    unused: NDArray[np.bool_]
    repaid: NDArray[np.float64]


class PlainGuard:
    """Runs plain decoding in the mind beside the real thing, and lets speculation lose little.

    The tokens of a text are the same whatever is verified, and the pass that verifies them shows
    their experts. So it is known what plain decoding would have loaded for them from the cache that
    it would have had by now (`SimulatedCache`), and from the plain passes in between, what that
    would have taken (`PlainTime`). The account (`SpeculationBudget`) so includes what a single
    cycle does not show: that unneeded loads push out useful ones, and that others serve
    later tokens. What they are expected to save is entered when they are loaded, and taken out
    again when the saving itself shows or they are evicted.
    """

    def __init__(self) -> None:
        self.budget = SpeculationBudget()
        self._time = PlainTime()
        self._waited = self._loads = 0.0
        self._cache: SimulatedCache | None = None
        self._begin()

    def start(self) -> None:
        """Begin another text: from here on both decode from the same cache."""
        self.budget.start()
        self._begin()

    def _begin(self) -> None:
        self._begun = False
        self._pass_seconds = 0.0
        self._load_seconds = 0.0
        self._expected_savings = 0.0

    @property
    def allows(self) -> bool:
        """Whether the next cycle may draft."""
        return self.budget.allows

    def look(self, view: DraftView) -> None:
        """See the cache and the prices before a cycle."""
        if self._cache is None:
            rule = CACHE_RULES.find(view.cache_policy)
            self._cache = SimulatedCache(rule, view.slots, *view.resident.shape)
        if not self._begun:
            self._cache.take_over(view.resident)
            self._begun = True
        cost = view.cost_model
        self._pass_seconds = cost.fixed_time + node_time_at(cost, 1)
        self._load_seconds = mean_expert_time(cost)

    def learn(
        self,
        outcome: Outcome,
        unneeded: UnneededLoads | None = None,
    ) -> None:
        """Compare a cycle with plain decoding of the same tokens."""
        if self._cache is None or not self._begun:
            return
        rows = np.searchsorted(outcome.choice.nodes, outcome.accepted)[: outcome.committed]
        n_experts = self._cache.resident.shape[1]
        plain_misses = 0.0
        for token in outcome.experts[rows]:
            plain_misses += np.count_nonzero(self._cache.use(expert_union(token[None], n_experts)))
        misses = float(outcome.misses.sum())
        keep = 1.0 - 1.0 / _MEMORY
        self._waited = keep * self._waited + outcome.transfer_seconds
        self._loads = keep * self._loads + misses
        # The cost model's time of a load is what a predicted load costs; here they are real ones.
        load = self._waited / self._loads if self._loads else self._load_seconds
        prices = self._pass_seconds, load
        if not outcome.levels:
            self._time.learn(outcome.seconds, misses, *prices)
        plain = self._time.seconds(len(rows), plain_misses, *prices)
        if outcome.levels:
            slow = plain + _STALL * self._time.seconds(1.0, misses, *prices)
            gained = plain - min(outcome.seconds, slow)
        else:
            # A plain pass differs from plain decoding in what it finds in the cache alone.
            gained = plain - self._time.seconds(1.0, misses, *prices)
        if unneeded is not None:
            # What plain decoding would have in its cache too is no advantage.
            ahead = (unneeded.unused & ~self._cache.resident).sum(axis=1)
            before, self._expected_savings = self._expected_savings, float(ahead @ unneeded.repaid)
            gained += load * (self._expected_savings - before)
        self.budget.enter(plain, len(rows), gained, outcome.levels > 0)


def mean_expert_time(cost: CostModel) -> float:
    """Return the seconds that one expert takes to bring in, averaged over all."""
    time: float | NDArray[np.float64] = cost.expert_time
    return time if isinstance(time, float) else float(time.mean())
