"""One cycle as a policy sees it: the draft tree, which grows while the policy asks for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..control.acceptance_calibration import AcceptanceCalibrator
from ..cost import CostModel
from ..errors import InvalidInputError
from ..routing_predictor import DraftNodes, RoutingPredictor

_UNPRICED = (
    "this decode runs without a cost model, because its policy says that it asks no prices; set "
    "Policy.priced"
)


@dataclass(frozen=True, eq=False)
class DraftLevel:
    """One drafted level of the tree.

    Nodes are numbered in order of creation over the whole tree, level by level; the root is 0.

    Attributes
    ----------
    parent : ndarray of int64, shape (m,)
        Node ids, each among the ``expanded`` of the level before (the root at the first).
    token : ndarray of int64, shape (m,)
        Ids in the target's vocabulary; siblings differ.
    prob : ndarray of float64, shape (m,)
        Probability of the token after its parent, by the drafter; siblings add up to at most 1.
    expanded : ndarray of int64
        Ids of this level whose children the next level would draft, the most probable path first.
    states : array or Tensor, shape (m, H_d), or None
        The drafter's hidden state at each node's parent, from which the node was drafted; None from
        a drafter without states.
    """

    parent: NDArray[np.int64]
    token: NDArray[np.int64]
    prob: NDArray[np.float64]
    expanded: NDArray[np.int64]
    states: Any = None


class LevelSource(Protocol):
    """What a view asks of a drafter."""

    @property
    def max_levels(self) -> int | None:
        """Levels that a tree can have at most; None: no limit known."""

    def root_state(self) -> Any:
        """Return the hidden state at the token before the root, shape (1, H_d), or None."""

    def begin(self) -> None:
        """Start a new tree."""

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        """Draft one more level; None if there is no more to give."""


@dataclass(frozen=True, eq=False)
class CycleState:
    """What is known before a cycle, beside the draft.

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
        What the cache evicts, by name.
    rate : float or None
        Tokens per second of this decode so far.
    load_time : ndarray of float64, shape (L,), or None
        Seconds that an expert of each layer costs that is really loaded, where the cost model's
        price of a predicted one allows for loads that the prediction misses. None: that price.
    """

    cost_model: CostModel | None
    level_time: Callable[[int], float] | None
    resident: NDArray[np.bool_]
    slots: NDArray[np.int64]
    cache_policy: str
    rate: float | None
    load_time: NDArray[np.float64] | None = None


class DraftView:
    """One cycle as a policy sees it: the tree drafted so far, and what drafting and loading cost.

    A view serves a single :meth:`Policy.choose`, live or in a replay. Node ids are those of the
    drafter: the root, the last committed token, is 0, and nodes count on in the order of their
    drafting, level by level, so that parents come before their children.

    Parameters
    ----------
    root : int
        Token id of the last committed token.
    drafter : LevelSource or None
        None: nothing can be drafted.
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator
    state : CycleState
    max_levels : int
        Levels beyond which no draft could be committed any more.

    Attributes
    ----------
    parent : ndarray of int64, shape (n,)
        Parent of each node; -1 for the root.
    token : ndarray of int64, shape (n,)
        Token id of each node.
    prob : ndarray of float64, shape (n,)
        The drafter's own probability of each node given its parent; 1 for the root.
    path_prob : ndarray of float64, shape (n,)
        Calibrated probability that a node and all its ancestors are accepted: 1 for the root, never
        above the parent's.
    depth : ndarray of int64, shape (n,)
        Edges from the root.
    frontier : ndarray of int64
        Nodes whose children the next level would hold.
    max_levels : int
        Levels that can be drafted in all.
    level_seconds : list of float
        Measured seconds of each drafted level, the opening of the tree in the first.
    """

    def __init__(
        self,
        root: int,
        drafter: LevelSource | None,
        predictor: RoutingPredictor,
        calibrator: AcceptanceCalibrator,
        state: CycleState,
        max_levels: int,
    ) -> None:
        self._drafter = drafter
        self._predictor = predictor
        self._calibrator = calibrator
        self._state = state
        limit = 0 if drafter is None else drafter.max_levels
        self.max_levels = max_levels if limit is None else min(limit, max_levels)
        self.parent: NDArray[np.int64] = np.full(1, -1, dtype=np.int64)
        self.token: NDArray[np.int64] = np.full(1, root, dtype=np.int64)
        self.prob: NDArray[np.float64] = np.ones(1)
        self.path_prob: NDArray[np.float64] = np.ones(1)
        self.depth: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.frontier: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.level_seconds: list[float] = []
        self._experts: NDArray[np.int32] | None = None
        self._unread: list[Any] = []  # the states of the levels that were not predicted yet
        self._exhausted = False

    @property
    def levels(self) -> int:
        """Levels drafted so far; 0 before the first :meth:`grow`."""
        return len(self.level_seconds) - self._exhausted

    @property
    def drafter_path_prob(self) -> NDArray[np.float64]:
        """Product of the drafter's own probabilities along each path, shape (n,).

        The published rules rank by it. A calibration for each depth would change their order.
        """
        path = np.minimum(self.prob, 1.0)  # a copy; an excess is rounding
        path[0] = 1.0
        for depth in range(1, self.levels + 1):
            level = np.flatnonzero(self.depth == depth)
            path[level] *= path[self.parent[level]]
        return path

    @property
    def cost_model(self) -> CostModel:
        """Time of a pass without drafting, corrected by what passes took so far."""
        if self._state.cost_model is None:
            raise InvalidInputError(_UNPRICED)
        return self._state.cost_model

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Experts in fast memory, shape (L, E). A live view: copy what must outlast the cycle."""
        return self._state.resident

    @property
    def slots(self) -> NDArray[np.int64]:
        """Experts of each layer that the cache can hold, shape (L,)."""
        return self._state.slots

    @property
    def cache_policy(self) -> str:
        """What the cache evicts, by its name."""
        return self._state.cache_policy

    @property
    def level_time(self) -> float:
        """Predicted seconds of drafting one more level."""
        if self._state.level_time is None:
            raise InvalidInputError(_UNPRICED)
        return self._state.level_time(self.levels + 1)

    @property
    def load_time(self) -> NDArray[np.float64]:
        """Seconds that an expert of each layer costs that is really loaded, shape (L,)."""
        if self._state.load_time is not None:
            return self._state.load_time
        n_layers, n_experts = self.resident.shape
        time: NDArray[np.float64] = self.cost_model.expert_table(n_layers, n_experts).mean(axis=1)
        return time

    @property
    def draft_time(self) -> float:
        """Seconds spent on drafting in this cycle so far."""
        return sum(self.level_seconds)

    @property
    def rate(self) -> float | None:
        """Tokens per second of this decode so far; None before its first cycle."""
        return self._state.rate

    @property
    def acceptance(self) -> Sequence[float]:
        """Probability that some child of an accepted, expanded node is accepted.

        Indexed by the child's depth (entry 0 is not used); the last entry serves deeper ones.
        """
        return self._calibrator.acceptance

    @property
    def predicted(self) -> bool:
        """Whether the routing of the nodes was predicted."""
        return self._experts is not None

    def experts(self, first: int = 0) -> NDArray[np.int32]:
        """Return the predicted experts of the nodes from ``first`` on, shape (n - first, L, k).

        -1 pads.
        """
        known = 0 if self._experts is None else len(self._experts)
        if known < len(self.token):
            found = self._predictor.predict(
                DraftNodes(
                    self.token[known:],
                    self.parent[known:],
                    self.depth[known:],
                    prob=self.path_prob[known:],
                    truth=self._truth(known),
                    states=self._take_states(with_root=not known),
                )
            )
            self._experts = (
                found if self._experts is None else np.concatenate([self._experts, found])
            )
        assert self._experts is not None
        return self._experts[first:]

    def grow(self, top_k: int, width: int) -> bool:
        """Draft one more level: ``top_k`` children of each frontier node.

        Parameters
        ----------
        top_k : int
            Children per node.
        width : int
            Nodes of the new level, those of highest path probability, that the level after it
            would expand.

        Returns
        -------
        bool
            False if the drafter had no more to give; the tree is then as it was.
        """
        if self._drafter is None or self._exhausted or self.levels >= self.max_levels:
            return False
        begin = perf_counter()
        if not self.levels:
            self._drafter.begin()
        level = self._drafter.level(top_k, width)
        self.level_seconds.append(self._seconds_of_level(perf_counter() - begin, level))
        if level is None:
            self._exhausted = True
            self.frontier = np.empty(0, dtype=np.int64)
            return False
        depth = self.levels
        path_prob = self._calibrator.path_prob(level.parent, level.prob, self.path_prob, depth)
        self.parent = np.concatenate([self.parent, level.parent])
        self.token = np.concatenate([self.token, level.token])
        self.prob = np.concatenate([self.prob, level.prob])
        self.path_prob = np.concatenate([self.path_prob, path_prob])
        self.depth = np.concatenate([self.depth, np.full(len(level.token), depth)])
        self.frontier = level.expanded
        self._unread.append(level.states)
        return True

    def subtree(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tokens and parents of a closed set of nodes, numbered among themselves.

        Parameters
        ----------
        nodes : ndarray of int64, shape (m,)
            Ascending, the root included.

        Returns
        -------
        token : ndarray of int64, shape (m,)
        parent : ndarray of int64, shape (m,)
            -1 for the root.
        """
        number = np.full(len(self.token) + 1, -1, dtype=np.int64)
        number[nodes] = np.arange(len(nodes))
        # The root's parent, -1, is the entry behind the last.
        return self.token[nodes], number[self.parent[nodes]]

    def _seconds_of_level(self, measured: float, level: DraftLevel | None) -> float:
        """Return what drafting a level counts as; a recording charges what its machine takes."""
        return measured

    def _truth(self, first: int) -> NDArray[np.integer] | None:
        """Return the true experts of the nodes from ``first`` on; decoding does not know them."""
        return None

    def _take_states(self, with_root: bool) -> Sequence[Any] | None:
        """Return the drafter's states of the nodes that were not predicted yet, level by level."""
        levels = [states for states in self._unread if states is not None]
        self._unread = []
        if with_root:
            root = None if self._drafter is None else self._drafter.root_state()
            if root is None and levels:
                root = levels[0][:1] * 0.0  # the drafter has not run over the token before it
            levels = levels if root is None else [root, *levels]
        return levels or None
