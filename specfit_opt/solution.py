"""A solution, and :func:`evaluate`: the single definition of the objective."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernel
from .arrays import as_array, first, refreeze
from .cost import CostModel
from .errors import InvalidInputError
from .instance import Instance
from .limits import RATE
from .routing import ExpertRouting
from .text import seconds
from .tree import DraftTree

#: Numbers of experts: whole where the routing is certain, expected where it is not.
Counts: TypeAlias = NDArray[np.int64] | NDArray[np.float64]

#: Relative error allowed where two computations of the same figure are compared.
RELATIVE_TOLERANCE = 1e-9


class Status(enum.Enum):
    """What is known about a solution."""

    OPTIMAL = "optimal"  #: Proven best; ``bound`` equals the objective.
    FEASIBLE = "feasible"  #: Ancestor-closed and of an allowed size; no proof.


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """An ancestor-closed subtree and what the cost model says of it.

    Attributes
    ----------
    nodes : ndarray of int64, shape (m,)
        The chosen nodes, ascending, roots included.
    mask : ndarray of bool, shape (n,)
        The same as a mask. Both are read-only.
    status : Status
        OPTIMAL (proven) or FEASIBLE (no proof, or a limit was hit).
    throughput : float
        ``expected_tokens / cycle_time``, tokens per second.
    bound : float or None
        No subtree has a better objective than this. None when the method gives none.
    gap : float or None
        How far the objective may be from the best: relative (``bound / throughput - 1``) for the
        ratio, absolute in tokens (``bound - surplus``) at a given rate. 0 when OPTIMAL.
    expected_tokens : float
        Sum of the path probabilities of the chosen nodes: the tokens that a pass commits.
    cycle_time, compute_time, transfer_time : float
        Seconds. ``cycle_time`` is the sum of the other two; ``compute_time`` is the fixed
        time and that of the nodes, ``transfer_time`` the price of the union of experts.
    experts_loaded : ndarray of int64, shape (L,)
        Experts per layer of the union that are not resident. For a routing made of scenarios
        (:meth:`ExpertRouting.from_scenarios`) the expected number, float64; ``transfer_time`` is
        then an expectation too.
    experts_used : ndarray of int64, shape (L,)
        Experts per layer of the union, resident or not; expected, float64, likewise.
    rate : float or None
        The rate lambda that the surplus was maximised at; None for the ratio.
    method : str
        The method's registered name.
    stats : mapping
        Counters of the method, such as ``kernel``, ``lambda_steps``, ``cuts``, ``branches``.

    Raises
    ------
    InvalidInputError
        On construction, if the figures contradict each other.
    """

    nodes: NDArray[np.int64]
    mask: NDArray[np.bool_]
    status: Status
    throughput: float
    bound: float | None
    gap: float | None
    expected_tokens: float
    cycle_time: float
    compute_time: float
    transfer_time: float
    experts_loaded: Counts
    experts_used: Counts
    rate: float | None = None
    method: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Plain arithmetic, because a solution is built in every cycle of a decode loop.
        tokens, cycle = self.expected_tokens, self.cycle_time
        if not (
            len(self.nodes) > 0
            and abs(cycle - self.compute_time - self.transfer_time) <= RELATIVE_TOLERANCE * cycle
            and abs(self.throughput * cycle - tokens) <= RELATIVE_TOLERANCE * tokens
        ):
            raise InvalidInputError(f"the solution contradicts itself: {self._figures()}")
        if self.bound is not None:
            # In tokens, and relative to the terms of the objective: a surplus is their difference.
            excess, terms = (self.objective - self.bound), tokens
            if self.rate is None:
                excess *= cycle
            else:
                terms += self.rate * cycle
            if excess > RELATIVE_TOLERANCE * max(1.0, terms):
                raise InvalidInputError(
                    f"the objective exceeds the bound {self.bound!r}: {self._figures()}"
                )

    @property
    def objective(self) -> float:
        """What was maximised: throughput, or the surplus P - rate * T in tokens."""
        if self.rate is None:
            return self.throughput
        return self.expected_tokens - self.rate * self.cycle_time

    @property
    def n_selected(self) -> int:
        """Number of chosen nodes, roots included."""
        return len(self.nodes)

    def check(self, tree: DraftTree, routing: ExpertRouting, cost_model: CostModel) -> None:
        """Evaluate the chosen nodes afresh and compare every figure.

        Parameters
        ----------
        tree : DraftTree
        routing : ExpertRouting
        cost_model : CostModel
            The problem that this is a solution of.

        Raises
        ------
        InvalidInputError
            If the set is not ancestor-closed, its size is forbidden or a figure differs.
        """
        fresh = evaluate(tree, routing, cost_model, self.nodes)
        if not np.array_equal(fresh.mask, self.mask):
            raise InvalidInputError("mask and nodes name different sets")
        for name in ("expected_tokens", "cycle_time", "compute_time", "throughput"):
            ours, theirs = getattr(self, name), getattr(fresh, name)
            if not _close(ours, theirs):
                raise InvalidInputError(f"{name} is {ours!r} but evaluates to {theirs!r}")
        for name in ("experts_loaded", "experts_used"):
            if not np.array_equal(getattr(self, name), getattr(fresh, name)):
                raise InvalidInputError(f"{name} differs from its evaluation")

    def summary(self) -> str:
        """Return a few lines for people.

        Returns
        -------
        str
            Without a final line feed.
        """
        lines = [
            f"{self.method or 'subtree'}: {self.n_selected} of {len(self.mask)} nodes, "
            f"{self.status.value}",
            f"  throughput       {self.throughput:.6g} tokens/s",
            f"  expected tokens  {self.expected_tokens:.4f} per pass",
            f"  cycle time       {seconds(self.cycle_time)} "
            f"(compute {seconds(self.compute_time)}, transfer {seconds(self.transfer_time)})",
            f"  experts loaded   {self.experts_loaded.sum():.6g} of "
            f"{self.experts_used.sum():.6g} used",
        ]
        if self.rate is not None:
            lines.insert(2, f"  surplus          {self.objective:.6g} tokens at {self.rate:.6g}/s")
        if self.gap is not None and self.gap > 0.0:
            unit = "%" if self.rate is None else "tokens"
            gap = 100.0 * self.gap if self.rate is None else self.gap
            lines.append(f"  gap              at most {gap:.3g} {unit}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the solution as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute except ``mask``, and the ``objective``; arrays as lists.
        """
        return {
            "method": self.method,
            "status": self.status.value,
            "nodes": self.nodes.tolist(),
            "throughput": self.throughput,
            "bound": self.bound,
            "gap": self.gap,
            "rate": self.rate,
            "objective": self.objective,
            "expected_tokens": self.expected_tokens,
            "cycle_time": self.cycle_time,
            "compute_time": self.compute_time,
            "transfer_time": self.transfer_time,
            "experts_loaded": self.experts_loaded.tolist(),
            "experts_used": self.experts_used.tolist(),
            "stats": dict(self.stats),
        }

    __setstate__ = refreeze

    def __repr__(self) -> str:
        return f"Solution({self._figures()})"

    def _figures(self) -> str:
        return (
            f"method={self.method!r}, status={self.status.name}, nodes={len(self.nodes)} of "
            f"{len(self.mask)}, throughput={self.throughput!r}, "
            f"expected_tokens={self.expected_tokens!r}, cycle_time={self.cycle_time!r}"
        )


def evaluate(
    tree: DraftTree,
    routing: ExpertRouting,
    cost_model: CostModel,
    nodes: ArrayLike | Iterable[int],
    *,
    rate: float | None = None,
    method: str = "",
    stats: Mapping[str, Any] | None = None,
) -> Solution:
    """Evaluate any ancestor-closed set: the single definition of the objective.

    Parameters
    ----------
    tree : DraftTree
    routing : ExpertRouting
    cost_model : CostModel
        The problem.
    nodes : array_like of int, or array of bool of shape (n,)
        The set, as node indices or as a mask. It must hold every root and each node's parent.
    rate : float, optional
        Rate of the surplus, tokens per second; None for the ratio.
    method : str
        Recorded in the result.
    stats : mapping, optional
        Recorded in the result.

    Returns
    -------
    Solution
        Status FEASIBLE, ``bound`` and ``gap`` None.

    Raises
    ------
    InvalidInputError
        If a node does not exist, a parent or root is missing, or the size is forbidden.

    Notes
    -----
    O(m L E / 64) time for m chosen nodes. The objective is :eq:`eq-objective` of the theory page.
    """
    instance = Instance(tree, routing, cost_model)
    rate = RATE(rate, "rate")
    mask = closed_mask(tree, nodes)
    size = int(mask.sum())
    if not math.isfinite(node_time_at(cost_model, size)):
        raise InvalidInputError(f"node_time forbids {size} nodes")
    return build_solution(instance, mask, rate=rate, method=method, stats=stats or {})


class Figures(NamedTuple):
    """A set of nodes and its parts of the objective, as the kernel's ``evaluate`` gives them."""

    mask: NDArray[np.bool_]
    expected_tokens: float
    transfer_time: float
    experts_loaded: Counts
    experts_used: Counts


def build_solution(
    instance: Instance,
    mask: NDArray[np.bool_],
    *,
    rate: float | None,
    method: str,
    stats: Mapping[str, Any],
    status: Status = Status.FEASIBLE,
    bound: float | None = None,
) -> Solution:
    """Return the Solution of a set known to be closed and allowed; ``bound`` as claimed."""
    routing, cost = instance.routing, instance.cost_model
    figures = kernel.evaluate(
        mask, instance.tree.path_prob, routing.rows, *instance.kernel_prices()
    )
    return solution_from_figures(
        expected_figures(routing, Figures(mask, *figures)),
        cost,
        fixed_time=cost.fixed_time,
        rate=rate,
        method=method,
        stats=stats,
        status=status,
        bound=bound,
    )


def expected_figures(routing: ExpertRouting, figures: Figures) -> Figures:
    """Turn the kernel's counts, by layer of each scenario, into expectations by layer."""
    weights = routing.scenario_weights
    if weights is None:
        return figures
    used = routing.union(figures.mask)
    return figures._replace(
        experts_loaded=weights @ (used & ~routing.resident).sum(axis=2),
        experts_used=weights @ used.sum(axis=2),
    )


def solution_from_figures(
    figures: Figures,
    cost: CostModel,
    *,
    fixed_time: float,
    rate: float | None,
    method: str,
    stats: Mapping[str, Any],
    status: Status,
    bound: float | None,
) -> Solution:
    """Add the times and the objective to a set's figures."""
    mask, tokens, transfer, loaded, used = figures
    nodes = mask.nonzero()[0]
    for array in (mask, nodes, loaded, used):  # all made for this solution alone
        array.setflags(write=False)
    compute = fixed_time + node_time_at(cost, len(nodes))
    cycle = compute + transfer
    gap = None
    if bound is not None:
        objective = tokens / cycle if rate is None else tokens - rate * cycle
        if status is Status.OPTIMAL:
            bound = objective
        gap = max(bound / objective - 1.0 if rate is None else bound - objective, 0.0)
    return Solution(
        nodes=nodes,
        mask=mask,
        status=status,
        throughput=tokens / cycle,
        bound=bound,
        gap=gap,
        expected_tokens=tokens,
        cycle_time=cycle,
        compute_time=compute,
        transfer_time=transfer,
        experts_loaded=loaded,
        experts_used=used,
        rate=rate,
        method=method,
        stats=stats,
    )


def closed_mask(tree: DraftTree, nodes: ArrayLike | Iterable[int]) -> NDArray[np.bool_]:
    """Return ``nodes`` as a mask after checking that it is ancestor-closed and holds the roots."""
    n = tree.n_nodes
    try:
        listed: Any = nodes if isinstance(nodes, np.ndarray) else list(nodes)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInputError(f"nodes must be a sequence, got {nodes!r}") from None
    chosen = as_array(listed, "nodes")
    if chosen.dtype == np.bool_:
        if chosen.shape != (n,):
            raise InvalidInputError(f"the mask has shape {chosen.shape} but the tree {n} nodes")
        mask = chosen.copy()
    else:
        if chosen.size and chosen.dtype.kind not in "iu":
            raise InvalidInputError(f"nodes must be integers or a mask, got dtype {chosen.dtype}")
        outside = chosen[(chosen < 0) | (chosen >= n)]
        if outside.size:
            raise InvalidInputError(f"node {outside[0]} is not in the tree of {n} nodes")
        mask = np.zeros(n, dtype=np.bool_)
        mask[chosen.astype(np.int64)] = True
    if (missing := first((tree.parent < 0) & ~mask)) is not None:
        raise InvalidInputError(
            f"root {missing} is missing; the target always runs the last committed token"
        )
    if (v := first(mask & (tree.parent >= 0) & ~mask[tree.parent])) is not None:
        raise InvalidInputError(
            f"node {v} is chosen without its parent {tree.parent[v]}; the set must be "
            "ancestor-closed"
        )
    return mask


def node_time_at(cost_model: CostModel, size: int) -> float:
    """Return the time by node count of ``size`` nodes, in seconds (inf: not allowed)."""
    time = cost_model.node_time
    return time * size if isinstance(time, float) else float(time[size])


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= RELATIVE_TOLERANCE * max(abs(a), abs(b), 1e-300)
