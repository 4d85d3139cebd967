"""One cycle's draft tree as a policy sees it, growing while the policy asks for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt import CostModel
from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor

from ..acceptance import AcceptanceCalibrator
from ..drafters import DraftLevel
from ..errors import InvalidInputError
from ..policies import DraftView

_UNPRICED = (
    "this decode runs without a cost model, because its policy says that it asks no prices; set "
    "Policy.priced"
)


@dataclass(frozen=True, eq=False)
class Prices:
    """What drafting and loading cost in one cycle, as known before it.

    Attributes
    ----------
    cost_model : CostModel or None
        Time of a pass without drafting; None where the policy asks no prices.
    level_time : callable or None
        ``level_time(level)``: predicted seconds of drafting level 1, 2, ...
    resident : ndarray of bool, shape (L, E)
        Experts in fast memory, a live view.
    slots : ndarray of int64, shape (L,)
        Experts of each layer that the cache can hold.
    cache_policy : str
        What the cache evicts.
    rate : float or None
        Tokens per second of this decode so far.
    """

    cost_model: CostModel | None
    level_time: Callable[[int], float] | None
    resident: NDArray[np.bool_]
    slots: NDArray[np.int64]
    cache_policy: str
    rate: float | None


class LevelSource(Protocol):
    """What a view asks of a drafter: see :class:`~specfit_runtime.drafters.Drafter`."""

    @property
    def max_levels(self) -> int | None:
        """Levels that a tree can have at most."""

    def root_state(self) -> Tensor | None:
        """Return the hidden state at the token before the root."""

    def begin(self) -> None:
        """Start a new tree."""

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        """Draft one more level."""


class CycleView(DraftView):
    """The tree of one cycle.

    Parameters
    ----------
    root : int
        Token id of the last committed token.
    drafter : LevelSource or None
        None: nothing can be drafted.
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator
    prices : Prices
    max_levels : int
        Levels beyond which no draft could be committed any more.
    """

    def __init__(
        self,
        root: int,
        drafter: LevelSource | None,
        predictor: RoutingPredictor,
        calibrator: AcceptanceCalibrator,
        prices: Prices,
        max_levels: int,
    ) -> None:
        self._drafter = drafter
        self._predictor = predictor
        self._calibrator = calibrator
        self._prices = prices
        limit = 0 if drafter is None else drafter.max_levels
        self._max_levels = max_levels if limit is None else min(limit, max_levels)
        self._parent = np.full(1, -1, dtype=np.int64)
        self._token = np.full(1, root, dtype=np.int64)
        self._prob = np.ones(1)
        self._path_prob = np.ones(1)
        self._depth = np.zeros(1, dtype=np.int64)
        self._frontier = np.zeros(1, dtype=np.int64)
        self._experts: NDArray[np.int32] | None = None
        self._states: list[Tensor | None] = []  # of the levels that were not predicted yet
        self._exhausted = False
        #: Measured seconds of each drafted level, the opening of the tree in the first.
        self.level_seconds: list[float] = []
        #: Measured seconds of predicting the routing.
        self.predict_seconds = 0.0

    @property
    def parent(self) -> NDArray[np.int64]:
        """See `DraftView`."""
        return self._parent

    @property
    def token(self) -> NDArray[np.int64]:
        """See `DraftView`."""
        return self._token

    @property
    def prob(self) -> NDArray[np.float64]:
        """The drafter's own probability of each node after its parent, shape (n,)."""
        return self._prob

    @property
    def path_prob(self) -> NDArray[np.float64]:
        """See `DraftView`."""
        return self._path_prob

    @property
    def depth(self) -> NDArray[np.int64]:
        """See `DraftView`."""
        return self._depth

    @property
    def levels(self) -> int:
        """See `DraftView`."""
        return len(self.level_seconds) - self._exhausted

    @property
    def max_levels(self) -> int | None:
        """See `DraftView`."""
        return self._max_levels

    @property
    def frontier(self) -> NDArray[np.int64]:
        """See `DraftView`."""
        return self._frontier

    @property
    def cost_model(self) -> CostModel:
        """See `DraftView`."""
        if self._prices.cost_model is None:
            raise InvalidInputError(_UNPRICED)
        return self._prices.cost_model

    @property
    def resident(self) -> NDArray[np.bool_]:
        """See `DraftView`."""
        return self._prices.resident

    @property
    def slots(self) -> NDArray[np.int64]:
        """See `DraftView`."""
        return self._prices.slots

    @property
    def cache_policy(self) -> str:
        """See `DraftView`."""
        return self._prices.cache_policy

    @property
    def level_time(self) -> float:
        """See `DraftView`."""
        if self._prices.level_time is None:
            raise InvalidInputError(_UNPRICED)
        return self._prices.level_time(self.levels + 1)

    @property
    def draft_time(self) -> float:
        """See `DraftView`."""
        return sum(self.level_seconds)

    @property
    def rate(self) -> float | None:
        """See `DraftView`."""
        return self._prices.rate

    @property
    def acceptance(self) -> Sequence[float]:
        """See `DraftView`."""
        return self._calibrator.acceptance

    @property
    def predicted(self) -> bool:
        """Whether the routing of the nodes was predicted."""
        return self._experts is not None

    def experts(self, first: int = 0) -> NDArray[np.int32]:
        """See `DraftView`."""
        known = 0 if self._experts is None else len(self._experts)
        if known < len(self._token):
            begin = perf_counter()
            found = self._predictor.predict(
                DraftNodes(
                    self._token[known:],
                    self._parent[known:],
                    self._depth[known:],
                    prob=self._path_prob[known:],
                    truth=self._truth(known),
                    states=self._unread_states(with_root=not known),
                )
            )
            self._experts = (
                found if self._experts is None else np.concatenate([self._experts, found])
            )
            self.predict_seconds += perf_counter() - begin
        assert self._experts is not None
        return self._experts[first:]

    def _truth(self, first: int) -> NDArray[np.integer] | None:
        """Return the true experts of the nodes from ``first`` on; decoding does not know them."""
        return None

    def _unread_states(self, with_root: bool) -> Tensor | None:
        """Return the drafter's states of the nodes that were not predicted yet, or None."""
        levels = [states for states in self._states if states is not None]
        self._states = []
        if not with_root:
            return levels[0] if len(levels) == 1 else torch.cat(levels) if levels else None
        root = None if self._drafter is None else self._drafter.root_state()
        if root is None and levels:
            root = torch.zeros_like(levels[0][:1])
        return None if root is None else torch.cat([root, *levels])

    def grow(self, top_k: int, width: int) -> bool:
        """See `DraftView`."""
        if self._drafter is None or self._exhausted or self.levels >= self._max_levels:
            return False
        begin = perf_counter()
        if not self.levels:
            self._drafter.begin()
        level = self._drafter.level(top_k, width)
        self.level_seconds.append(perf_counter() - begin)
        if level is None:
            self._exhausted = True
            self._frontier = np.empty(0, dtype=np.int64)
            return False
        depth = self.levels
        path_prob = self._calibrator.path_prob(level.parent, level.prob, self._path_prob, depth)
        self._parent = np.concatenate([self._parent, level.parent])
        self._token = np.concatenate([self._token, level.token])
        self._prob = np.concatenate([self._prob, level.prob])
        self._path_prob = np.concatenate([self._path_prob, path_prob])
        self._depth = np.concatenate([self._depth, np.full(len(level.token), depth)])
        self._frontier = level.expanded
        self._states.append(level.states)
        return True
