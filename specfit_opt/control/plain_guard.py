"""Holds speculation to what plain decoding would have taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..caches import CACHE_RULES, SimulatedCache
from ..checks import Real, checked
from ..cost import CostModel
from ..expert_union import expert_union
from ..schema import ListOf, Record
from ..solution import node_time_at
from .robust import RecentAverage
from .speculation_budget import BUDGET_STATE, SpeculationBudget

if TYPE_CHECKING:
    from ..policies import DraftView, Outcome

#: Cycles of each kind whose times are held against their prices.
_WINDOW = 32
#: Standard errors that a difference between the two kinds must exceed to be believed.
_DOUBT = 1.0

_RATIOS = ListOf(Real(most=1e9), 0, _WINDOW)
#: What `PlainGuard.to_state` gives.
GUARD_STATE = Record({"budget": BUDGET_STATE, "drafted": _RATIOS, "plain": _RATIOS})


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
    it would have had by now (`SimulatedCache`). The account (`SpeculationBudget`) so includes what
    a single cycle does not show: that unneeded loads push out useful ones, and that others serve
    later tokens. What they are expected to save is entered when they are loaded, and taken out
    again when the saving itself shows or they are evicted.

    Both sides are entered at prices, nodes, levels and loads at what the cost model has learned for
    each, because the time of one cycle says little on a machine that does other things too. What
    cycles with drafting take beyond their price, relative to plain passes, is charged as well, as
    far as it exceeds what the scatter of the last cycles explains (`price_error`).
    """

    def __init__(self) -> None:
        self.budget = SpeculationBudget()
        self._drafted, self._plain = RecentAverage(_WINDOW), RecentAverage(_WINDOW)
        self._cache: SimulatedCache | None = None
        self._begin()

    def start(self) -> None:
        """Begin another text: from here on both decode from the same cache."""
        self.budget.start()
        self._begin()

    def to_state(self) -> dict[str, Any]:
        """Return what a later decode of the same model, drafter and machine may begin with."""
        return {
            "budget": self.budget.to_state(),
            "drafted": self._drafted.values,
            "plain": self._plain.values,
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        kept = checked(state, GUARD_STATE, "guard")
        self.budget.from_state(kept["budget"])
        self._drafted = RecentAverage(_WINDOW, tuple(kept["drafted"]))
        self._plain = RecentAverage(_WINDOW, tuple(kept["plain"]))

    def _begin(self) -> None:
        self._cost: CostModel | None = None
        self._load_time = np.zeros(0)
        self._expected_savings = 0.0

    @property
    def allows(self) -> bool:
        """Whether the next cycle may draft."""
        return self.budget.allows

    @property
    def price_error(self) -> float:
        """What drafting takes beyond its price, relative to plain passes; negative if less.

        The part of the difference that `_DOUBT` standard errors of it do not explain; 0 before four
        cycles of each kind were seen.
        """
        drafted, plain = self._drafted, self._plain
        if min(len(drafted), len(plain)) < 4 or not plain.value:
            return 0.0
        difference = drafted.value / plain.value - 1.0
        doubt = _DOUBT * math.hypot(drafted.error, plain.error) / plain.value
        return float(np.sign(difference)) * max(abs(difference) - doubt, 0.0)

    def look(self, view: DraftView) -> None:
        """See the cache and the prices before a cycle."""
        if self._cache is None:
            rule = CACHE_RULES.find(view.cache_policy)
            self._cache = SimulatedCache(rule, view.slots, *view.resident.shape)
        if self._cost is None:
            self._cache.take_over(view.resident)
        self._cost = view.cost_model
        self._load_time = view.load_time

    def learn(
        self,
        outcome: Outcome,
        drafting: float = 0.0,
        unneeded: UnneededLoads | None = None,
    ) -> None:
        """Compare a cycle with plain decoding of the same tokens.

        Parameters
        ----------
        outcome : Outcome
        drafting : float
            The price of the levels that were drafted, seconds.
        unneeded : UnneededLoads, optional
        """
        if self._cache is None or self._cost is None:
            return
        rows = np.searchsorted(outcome.choice.nodes, outcome.accepted)[: outcome.committed]
        n_experts = self._cache.resident.shape[1]
        plain_loads = np.zeros(len(self._load_time), dtype=np.int64)
        for token in outcome.experts[rows]:
            missed = self._cache.use(expert_union(token[None], n_experts))
            plain_loads += np.count_nonzero(missed, axis=1)
        plain = len(rows) * self._pass_price(1) + float(plain_loads @ self._load_time)
        price = self._pass_price(len(outcome.choice.nodes)) + drafting
        price += float(outcome.misses @ self._load_time)
        (self._drafted if outcome.levels else self._plain).add(outcome.seconds / price)
        gained = plain - price * (1.0 + (self.price_error if outcome.levels else 0.0))
        if unneeded is not None:
            # What plain decoding would have in its cache too is no advantage.
            ahead = (unneeded.unused & ~self._cache.resident).sum(axis=1)
            before = self._expected_savings
            self._expected_savings = float((ahead * unneeded.repaid) @ self._load_time)
            gained += self._expected_savings - before
        self.budget.enter(gained, plain / len(rows), outcome.levels > 0)

    def _pass_price(self, n_nodes: int) -> float:
        assert self._cost is not None  # look comes first
        return self._cost.fixed_time + node_time_at(self._cost, n_nodes)
