"""Selection level by level while the drafter works, and advice on when to stop drafting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernel
from .arrays import as_array, float_array, integer_array
from .checks import Whole
from .cost import CostModel
from .errors import InvalidInputError
from .instance import check_sizes
from .limits import MOST_LEVELS, RATE, SECONDS, check_layers, check_size
from .methods.exact import check_claim
from .routing import checked_resident, kernel_ids
from .solution import Figures, Solution, Status, solution_from_figures
from .tree import PROBABILITY_TOLERANCE

#: A next level must promise at least this relative gain; below it is rounding.
_PROMISE = 1e-12


@dataclass(frozen=True)
class Advice:
    """Whether to draft another level, and why.

    Attributes
    ----------
    go : bool
        True to draft on, False to stop and verify.
    rule : str
        The rule that decided: ``"certified"`` or ``"expected"``.
    reason : str
        One sentence with the figures.
    current : float
        Objective of the best subtree so far (tokens per second, or tokens at a rate).
    bound : float
        The certified rule's figure: no continuation has a better objective.
    expected : float or None
        The expected rule's figure; None when no acceptance was given.
    """

    go: bool
    rule: str
    reason: str
    current: float
    bound: float
    expected: float | None = None


class TreeSearch:
    r"""The best subtree of a tree that grows level by level.

    Parameters
    ----------
    cost_model : CostModel
        Its ``fixed_time`` is that of a pass without drafting. A ``node_time`` table needs an entry
        for every size that the tree may reach.
    n_layers, n_experts : int
    resident : array_like of bool, shape (L, E), optional
        Experts in fast memory. Default: none.
    rate : float, optional
        Maximise the surplus at this rate (tokens per second) instead of the ratio.
    waste_share : array_like of float, shape (L,), optional
        Charge only for loads that no committed token needs, and this share, from 0 to 1, of their
        price; see Notes. By default every load is charged in full. For one root.

    Raises
    ------
    InvalidInputError
        If the cost model is for other numbers of layers or experts, there are more than
        :mod:`specfit_opt.limits` allows, or a share is out of range.

    Notes
    -----
    :meth:`extend` packs and indexes the new nodes only, O(m L k) for m of them, then solves.

    **Waste.** Decoding without drafting loads the experts of every token of the text too, unless
    they are in fast memory by then. What drafting costs is the loads that no committed token uses:
    with ``waste_share`` s a missing expert of price w costs :math:`s\, w\, (1 - \pi)`, where
    :math:`\pi` is the probability that the target's path through the tree so far meets it,

    .. math:: \pi_e = \sum \{ p(v) : v \text{ uses } e \text{ and none of its ancestors does} \},

    exact, because at most one of these nodes is on the path. The root's experts cost nothing. A new
    level raises :math:`\pi` and so lowers prices of all nodes; times of a :class:`Solution` are at
    the prices of the tree at the time.

    A search can be copied (``copy.copy``) and pickled; the copy goes on by itself. It serves one
    thread at a time: a call while another thread's solve runs raises SpecfitError. An interrupt
    (Ctrl-C) ends any call at once and leaves the search as it was before.

    Examples
    --------
    >>> search = TreeSearch(CostModel(1.0, 0.01, 0.2), n_layers=1, n_experts=5)
    >>> search.extend([-1], [1.0], [[[0, 1]]]).nodes.tolist()
    [0]
    >>> search.extend([0, 0], [0.8, 0.1], [[[0, 2]], [[3, 4]]], draft_time=0.05).nodes.tolist()
    [0, 1]
    >>> search.advise(level_time=0.05).go
    True
    """

    def __init__(
        self,
        cost_model: CostModel,
        n_layers: int,
        n_experts: int,
        resident: ArrayLike | None = None,
        *,
        rate: float | None = None,
        waste_share: ArrayLike | None = None,
    ) -> None:
        self.n_layers: int = Whole(1)(n_layers, "n_layers")
        self.n_experts: int = Whole(1)(n_experts, "n_experts")
        check_layers(self.n_layers, self.n_experts)
        self.cost_model = self._checked_cost(cost_model)
        self.rate: float | None = RATE(rate, "rate")
        self.waste_share = None
        if waste_share is not None:
            self.waste_share = _checked_share(waste_share, self.n_layers)
        self._state = self._new_state(checked_resident(resident, self.n_layers, self.n_experts))
        self._prob: list[float] = []
        self._depth: list[int] = []
        self._n_roots = 0
        self._frontier = range(0)
        self._drafting = 0.0
        self._solution: Solution | None = None

    @property
    def n_nodes(self) -> int:
        """Number of nodes so far."""
        return len(self._prob)

    @property
    def draft_time(self) -> float:
        """Seconds of drafting so far; part of every subtree's cycle time."""
        return self._drafting

    @property
    def solution(self) -> Solution:
        """The best subtree so far.

        Raises
        ------
        InvalidInputError
            Before the first :meth:`extend`.
        """
        if self._solution is None:
            if not self._prob:
                raise InvalidInputError("the tree is empty; extend it with the root first")
            self._solution = self._solve(self._drafting)
        return self._solution

    def extend(
        self,
        parent: ArrayLike,
        path_prob: ArrayLike,
        experts: ArrayLike,
        draft_time: float = 0.0,
    ) -> Solution:
        """Add a level and return the best subtree of the tree so far.

        Parameters
        ----------
        parent : array_like of int, shape (m,)
            Parents of the new nodes, whose ids count on from the last level. The first call
            brings every root (-1).
        path_prob : array_like of float, shape (m,)
        experts : array_like of int, shape (m, L, k)
            -1 pads; k may differ between levels.
        draft_time : float
            Seconds that drafting this level took. They are spent whatever is chosen.

        Returns
        -------
        Solution
            Status OPTIMAL; its masks and nodes cover the tree so far.

        Raises
        ------
        InvalidInputError
            As for DraftTree and ExpertRouting; also for a root after the first call, or a tree
            that outgrows a ``node_time`` table.

        Notes
        -----
        Whatever is raised, an interrupt too, the tree is then as it was before the call.
        """
        parents = _as_given(parent, np.int32, 1)
        if parents is None:
            parents = integer_array(parent, "parent", 1)
        probs = _as_given(path_prob, np.float64, 1)
        if probs is None:
            probs = float_array(path_prob, "path_prob")
        ids = np.ascontiguousarray(as_array(experts, "experts"))
        if ids.dtype.kind not in "iu" or ids.ndim != 3 or ids.shape[1] != self.n_layers:
            raise InvalidInputError(
                f"experts must be integers of shape (nodes, {self.n_layers}, slots), "
                f"got {ids.dtype} of shape {ids.shape}"
            )
        if not len(parents) == len(probs) == len(ids) or probs.ndim != 1:
            raise InvalidInputError(
                f"parent, path_prob and experts are for {len(parents)}, {probs.shape} and "
                f"{len(ids)} nodes; give the same number"
            )
        if len(parents) == 0:
            raise InvalidInputError("the level has no nodes; there is nothing to extend by")
        spent = SECONDS(draft_time, "draft_time")
        clipped, depth = self._checked_level(parents.tolist(), probs.tolist())
        n_roots = self._n_roots or depth.count(0)
        if n_roots > 1 and self.waste_share is not None:
            raise InvalidInputError(
                f"the first level has {n_roots} roots, but waste_share is for one; leave it out "
                "for a forest"
            )
        first = len(self._prob)
        frontier = range(first, first + len(clipped))
        check_size(frontier.stop, self.n_layers, self.n_experts)
        check_sizes(self.cost_model, n_roots, frontier.stop)
        drafting = self._drafting + spent
        try:
            bad = self._state.extend(parents, np.array(clipped), kernel_ids(ids))
            if bad >= 0:
                v, layer, slot = (int(i) for i in np.unravel_index(bad, ids.shape))
                raise InvalidInputError(
                    f"experts[{v}, {layer}, {slot}] = {ids[v, layer, slot]} of this level is no "
                    f"expert of {self.n_experts} (ids are 0 to {self.n_experts - 1}, -1 pads)"
                )
            solution = self._solve(drafting)
        except BaseException:
            if self._state.n_nodes > first:
                self._state.truncate(first)
            raise
        # No call from here on, so that an interrupt comes before or after all of it.
        self._frontier = frontier
        self._prob += clipped
        self._depth += depth
        self._n_roots = n_roots
        self._drafting = drafting
        self._solution = solution
        return solution

    def waste(self) -> NDArray[np.float64]:
        """Return how likely it is that no committed token uses each expert.

        Returns
        -------
        ndarray of float64, shape (L, E)
            Of missing experts that take time to bring in; 1 for the others.

        Raises
        ------
        InvalidInputError
            If the search was begun without ``waste_share``.
        """
        if self.waste_share is None:
            raise InvalidInputError("this search charges every load; begin it with waste_share")
        return 1.0 - np.minimum(self._state.met_probability(), 1.0)

    def advise(
        self,
        level_time: float,
        acceptance: float | Sequence[float] | NDArray[np.float64] | None = None,
        *,
        levels: int = 1,
        frontier: Sequence[int] | NDArray[np.integer] | None = None,
    ) -> Advice:
        """Tell whether drafting further can pay, and whether it is expected to.

        Parameters
        ----------
        level_time : float
            Seconds that drafting one more level takes.
        acceptance : float or sequence of float, optional
            Calibrated probability that the target accepts some child of an accepted node: one for
            all depths, or indexed by the child's depth (the last entry serves deeper ones). None:
            the certified rule alone decides.
        levels : int
            Levels that could still be drafted, at most 1024. The certified rule then bounds all of
            them, so that a stop is right however many would follow.
        frontier : sequence of int, optional
            Nodes that the drafter would expand; by default the last level.

        Returns
        -------
        Advice
            Stop if the certified rule excludes a gain; else, when ``acceptance`` is given, stop if
            the expected rule sees none; else go.

        Raises
        ------
        InvalidInputError
            Before the first :meth:`extend`, or for arguments out of range.

        Notes
        -----
        Both rules solve the tree with virtual children exactly (section "Stopping" of the theory
        page). *Certified*: under each frontier node a chain of virtual nodes, each with the node's
        own path probability and no experts; no set of descendants can add more, provided that the
        path probabilities of siblings add up to at most their parent's, as those of disjoint
        events do. *Expected*: one child with path probability ``p * acceptance`` that loads as
        many experts as its parent did beyond its own ancestors (a root: all of its own).
        """
        current = self.solution.objective
        level_time = SECONDS(level_time, "level_time")
        levels = Whole(1, MOST_LEVELS)(levels, "levels")
        nodes = self._checked_frontier(frontier)
        check_size(self.n_nodes + levels * len(nodes), self.n_layers, self.n_experts)
        bound = max(
            self._with_children(
                nodes, [self._prob[v] for v in nodes], [0.0] * len(nodes), level_time, depth, True
            )
            for depth in range(1, levels + 1)
        )
        unit = "tokens/s" if self.rate is None else "tokens of surplus"
        least = self._least_gain()
        if bound <= least:
            reason = f"no continuation can exceed {bound:.6g} {unit}, and {current:.6g} is in hand"
            return Advice(False, "certified", reason, current, bound)
        if acceptance is None:
            reason = f"a continuation could reach {bound:.6g} {unit}; {current:.6g} is in hand"
            return Advice(True, "certified", reason, current, bound)
        expected = self._expected(level_time, acceptance, nodes)
        go = expected > least
        reason = f"one more level is expected to give {expected:.6g} {unit}, {current:.6g} in hand"
        return Advice(go, "expected", reason, current, bound, expected)

    def expects_gain(
        self,
        level_time: float,
        acceptance: float | Sequence[float] | NDArray[np.float64],
        *,
        frontier: Sequence[int] | NDArray[np.integer] | None = None,
    ) -> bool:
        """Return whether :meth:`advise` would go on for one level, without its bound.

        The expected rule is the stricter one of the two, so that half of the work will do.

        Parameters
        ----------
        level_time : float
        acceptance : float or sequence of float
        frontier : sequence of int, optional
            All as for :meth:`advise`.

        Returns
        -------
        bool

        Raises
        ------
        InvalidInputError
            As for :meth:`advise`.
        """
        least = self._least_gain()
        level_time = SECONDS(level_time, "level_time")
        nodes = self._checked_frontier(frontier)
        check_size(self.n_nodes + len(nodes), self.n_layers, self.n_experts)
        return self._expected(level_time, acceptance, nodes) > least

    def _least_gain(self) -> float:
        """Return the objective that a continuation must exceed."""
        solution = self.solution
        scale = abs(solution.objective) if self.rate is None else solution.expected_tokens
        return solution.objective + _PROMISE * scale

    def _expected(self, level_time: float, acceptance: Any, nodes: list[int]) -> float:
        """Return the best objective with the child that each of ``nodes`` is expected to have."""
        chance = _checked_acceptance(acceptance)
        novelty = self._state.novelty(np.array(nodes, dtype=np.int32))
        return self._with_children(
            nodes,
            [self._prob[v] * chance[min(self._depth[v] + 1, len(chance) - 1)] for v in nodes],
            novelty.tolist(),
            level_time,
            1,
            False,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_state"}
        state["_prob"], state["_depth"] = list(self._prob), list(self._depth)
        return {**state, "nodes": self._state.nodes(), "resident": self._state.resident_mask}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nodes, resident = state.pop("nodes"), state.pop("resident")
        vars(self).update(state)
        resident.flags.writeable = False
        self._state = self._new_state(resident)
        self._state.extend_rows(*nodes)

    def _new_state(self, resident: NDArray[np.bool_]) -> kernel.TreeState:
        cost = self.cost_model
        times = cost.kernel_expert_time(self.n_layers, self.n_experts)
        return kernel.TreeState(resident, times, cost.resident_time, self.waste_share)

    def _checked_cost(self, cost_model: Any) -> CostModel:
        if not isinstance(cost_model, CostModel):
            raise InvalidInputError(f"expected a CostModel, got {type(cost_model).__name__}")
        cost_model.require_experts(self.n_layers, self.n_experts)
        return cost_model

    def _checked_level(
        self, parents: list[int], probs: list[float]
    ) -> tuple[list[float], list[int]]:
        first = v = len(self._prob)
        prob: list[float] = []
        depth: list[int] = []
        for u, p in zip(parents, probs, strict=True):
            if 0 <= u < v:
                if u < first:
                    above, level = self._prob[u], self._depth[u]
                else:
                    above, level = prob[u - first], depth[u - first]
            elif u == -1 and not first:
                above, level = 1.0, -1
            else:
                raise InvalidInputError(_bad_parent(u, v, first))
            if not 0.0 <= p <= above or level < 0:
                p = _checked_prob(p, above, u, v, first)
            prob.append(p)
            depth.append(level + 1)
            v += 1
        return prob, depth

    def _checked_frontier(self, frontier: Any) -> list[int]:
        if frontier is None:
            return list(self._frontier)
        given = _as_given(frontier, np.int64, 1)
        nodes: list[int] = (
            integer_array(frontier, "frontier", 1) if given is None else given
        ).tolist()
        for v in nodes:
            if not 0 <= v < self.n_nodes:
                raise InvalidInputError(f"frontier node {v} is not in the tree of {self.n_nodes}")
        return nodes

    def _solve(self, drafting: float) -> Solution:
        cost = self.cost_model
        fixed = cost.fixed_time + drafting
        mask, _, objective, bound, stats, figures = self._state.solve(
            fixed,
            cost.node_time,
            math.nan if self.rate is None else self.rate,
            self._state.n_nodes,
            math.inf,
        )
        assert figures is not None  # no virtual nodes were given
        solution = solution_from_figures(
            Figures(mask, *figures),
            cost,
            fixed_time=fixed,
            rate=self.rate,
            method="exact",
            stats=stats,
            status=Status.OPTIMAL,
            bound=bound,
        )
        check_claim(solution, objective)
        return solution

    def _with_children(
        self,
        nodes: list[int],
        prob: list[float],
        price: list[float],
        level_time: float,
        depth: int,
        relaxed: bool,
    ) -> float:
        """Return the best objective with ``depth`` virtual nodes, a chain, under each of ``nodes``.

        ``relaxed`` replaces a node_time table by its suffix minimum: real children are at least as
        many as the virtual ones, and more nodes may cost less or be allowed where fewer are not.
        """
        first, m = self.n_nodes, len(nodes)
        parent = nodes + list(range(first, first + m * (depth - 1)))
        total = first + m * depth
        time = self.cost_model.node_time
        if not isinstance(time, float):
            table = np.minimum.accumulate(time[::-1])[::-1] if relaxed else time
            short = total + 1 - len(table)
            time = np.concatenate([table, np.full(max(short, 0), np.inf)])
        return self._state.solve(
            self.cost_model.fixed_time + self._drafting + depth * level_time,
            time,
            math.nan if self.rate is None else self.rate,
            total,
            math.inf,
            np.array(parent, dtype=np.int32),
            np.array(prob * depth),
            np.array(price * depth),
        )[2]


def _as_given(value: Any, dtype: Any, ndim: int) -> NDArray[Any] | None:
    """Return ``value`` if it needs no conversion: the usual case, and this is a hot path."""
    if (
        type(value) is np.ndarray
        and value.dtype == dtype
        and value.ndim == ndim
        and value.flags.c_contiguous
    ):
        return value
    return None


def _bad_parent(u: int, v: int, first: int) -> str:
    if u == -1:
        return f"parent[{v - first}] = -1: node {v} is a root, but roots come with the first level"
    return (
        f"parent[{v - first}] = {u} is no earlier node; node ids count on from the last level, "
        f"this is node {v}"
    )


def _checked_prob(p: float, above: float, u: int, v: int, first: int) -> float:
    where = f"path_prob[{v - first}] = {p} (node {v})"
    if not 0.0 <= p <= 1.0 + PROBABILITY_TOLERANCE:
        raise InvalidInputError(f"{where} is no probability; it must be in [0, 1]")
    if u < 0 and abs(p - 1.0) > PROBABILITY_TOLERANCE:
        raise InvalidInputError(f"{where} is a root's; the probability of a root is 1")
    if p > above + PROBABILITY_TOLERANCE:
        raise InvalidInputError(f"{where} exceeds that of its parent {u} ({above})")
    return above if u < 0 else min(p, above)


def _checked_share(share: Any, n_layers: int) -> NDArray[np.float64]:
    given = float_array(share, "waste_share")
    if given.shape != (n_layers,) or not ((given >= 0.0) & (given <= 1.0)).all():
        raise InvalidInputError(
            f"waste_share must be {n_layers} numbers from 0 to 1, one per layer, got {given}"
        )
    return given


def _checked_acceptance(acceptance: Any) -> list[float]:
    chance = np.atleast_1d(float_array(acceptance, "acceptance"))
    if chance.ndim != 1 or not len(chance) or not ((chance >= 0.0) & (chance <= 1.0)).all():
        raise InvalidInputError(
            f"acceptance must be one probability or one per depth, all in [0, 1]: {acceptance!r}"
        )
    values: list[float] = chance.tolist()
    return values
