"""The kernel in plain Python: the same functions as the compiled module, bitsets as big integers.

It exists for differential tests and for platforms without a compiler. Same algorithm, written to
be read rather than to be fast; :mod:`specfit_opt.kernel` says how it is selected.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import interrupt

NAME = "python"

#: tokens, transfer seconds, experts loaded and used per layer
Figures = tuple[float, float, NDArray[np.int64], NDArray[np.int64]]
#: mask, proven, objective, bound, stats, figures
Result = tuple[NDArray[np.bool_], bool, float, float, dict[str, Any], Figures | None]


def pack(experts: NDArray[np.integer], n_experts: int) -> tuple[NDArray[np.uint64], int]:
    """Pack expert ids into bit rows.

    Parameters
    ----------
    experts : ndarray of int16, int32 or int64, shape (n, L, k), contiguous
    n_experts : int

    Returns
    -------
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
    bad : int
        Flat index of the first id outside [-1, n_experts), or -1. ``rows`` is then incomplete.
    """
    n, n_layers, _ = experts.shape
    words = -(-n_experts // 64)
    rows = np.zeros((n, n_layers * words), dtype=np.uint64)
    flat = experts.reshape(-1)
    outside = np.flatnonzero((flat < -1) | (flat >= n_experts))
    if outside.size:
        return rows, int(outside[0])
    node, layer, slot = np.nonzero(experts >= 0)
    ids = experts[node, layer, slot].astype(np.int64)
    bits = np.left_shift(np.uint64(1), (ids % 64).astype(np.uint64))
    np.bitwise_or.at(rows, (node, layer * words + ids // 64), bits)
    return rows, -1


def union_mask(experts: NDArray[np.integer], n_experts: int) -> NDArray[np.bool_]:
    """Return which experts of each layer some node uses.

    Parameters
    ----------
    experts : ndarray of int16, int32 or int64, shape (n, L, k)
        What is no expert, such as padding, is passed over.
    n_experts : int

    Returns
    -------
    ndarray of bool, shape (L, E)
    """
    node, layer, slot = np.nonzero((experts >= 0) & (experts < n_experts))
    mask = np.zeros((experts.shape[1], n_experts), dtype=np.bool_)
    mask[layer, experts[node, layer, slot]] = True
    return mask


def heaviest(
    history: NDArray[np.integer], weight: NDArray[np.float64], n_experts: int
) -> NDArray[np.integer]:
    """Return the experts that weigh most in each history, the heaviest first.

    Parameters
    ----------
    history : ndarray of int16, int32 or int64, shape (n, t, L, k)
        Experts of t occurrences; -1 pads.
    weight : ndarray of float64, shape (t,)
        Of a mention in each occurrence, positive.
    n_experts : int

    Returns
    -------
    ndarray of the same dtype, shape (n, L, k)
        The smaller id first among equals; -1 pads.
    """
    n, times, n_layers, k = history.shape
    best = np.full((n, n_layers, k), -1, dtype=history.dtype)
    for v in range(n):
        for layer in range(n_layers):
            score: dict[int, float] = {}
            for t in range(times):
                for e in history[v, t, layer].tolist():
                    if 0 <= e < n_experts:
                        score[e] = score.get(e, 0.0) + float(weight[t])
            order = sorted(score, key=lambda e: (-score[e], e))[:k]
            best[v, layer, : len(order)] = order
    return best


def evict(
    held: NDArray[np.bool_], rank: NDArray[np.float64], slots: NDArray[np.int64]
) -> None:
    """Take out of each layer what is beyond its slots, lowest rank and smallest id first.

    Parameters
    ----------
    held : ndarray of bool, shape (L, E), contiguous
        Is changed.
    rank : ndarray of float64, shape (L, E), contiguous
    slots : ndarray of int64, shape (L,)
    """
    for here, ranks, most in zip(held, rank, slots.tolist(), strict=True):
        inside = np.flatnonzero(here)
        order = inside[np.argsort(ranks[inside], kind="stable")]
        here[order[: max(len(order) - most, 0)]] = False


def evaluate(
    mask: NDArray[np.bool_],
    path_prob: NDArray[np.float64],
    rows: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    expert_time: NDArray[np.float64],
    resident_time: float,
) -> Figures:
    """Evaluate a set of nodes.

    Parameters
    ----------
    mask : ndarray of bool, shape (n,)
    path_prob : ndarray of float64, shape (n,)
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
    resident : ndarray of bool, shape (L, E)
    expert_time : ndarray of float64, shape (L,) or (L, E)
    resident_time : float

    Returns
    -------
    expected_tokens, transfer_time : float
    experts_loaded, experts_used : ndarray of int64, shape (L,)
    """
    n_layers, n_experts = resident.shape
    union = np.bitwise_or.reduce(rows[mask], axis=0).reshape(n_layers, -1)
    used = np.unpackbits(union.view(np.uint8), axis=1, bitorder="little")[:, :n_experts] != 0
    time = expert_time if expert_time.ndim == 2 else expert_time[:, None]
    transfer = float(np.where(used, np.where(resident, resident_time, time), 0.0).sum())
    loaded = (used & ~resident).sum(axis=1, dtype=np.int64)
    return float(path_prob[mask].sum()), transfer, loaded, used.sum(axis=1, dtype=np.int64)


def solve(
    parent: NDArray[np.int32],
    path_prob: NDArray[np.float64],
    rows: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    expert_time: NDArray[np.float64],
    resident_time: float,
    fixed_time: float,
    node_time: float | NDArray[np.float64],
    rate: float,
    max_nodes: int,
    time_limit: float,
) -> Result:
    """Find the best ancestor-closed set.

    Parameters
    ----------
    parent : ndarray of int32, shape (n,)
    path_prob, rows, resident, expert_time, resident_time
        As for :func:`evaluate`.
    fixed_time : float
        Seconds.
    node_time : float or ndarray of float64, shape (>= n + 1,)
    rate : float
        NaN maximises the ratio, a number the surplus at that rate.
    max_nodes : int
    time_limit : float
        Seconds; inf for none.

    Returns
    -------
    mask : ndarray of bool, shape (n,)
    proven : bool
    objective, bound : float
    stats : dict
    figures : tuple
        What :func:`evaluate` says of the set.
    """
    state = TreeState(resident, expert_time, resident_time)
    state.extend_rows(parent, path_prob, rows)
    return state.solve(fixed_time, node_time, rate, max_nodes, time_limit)


class TreeState:
    """A tree that grows, with everything that does not depend on the question asked of it.

    Parameters
    ----------
    resident : ndarray of bool, shape (L, E)
    expert_time : ndarray of float64, shape (L,) or (L, E)
    resident_time : float
    waste_share : ndarray of float64, shape (L,), optional
        Charge this share of an expert's time, times the probability that no committed token uses
        the expert, see :class:`specfit_opt.TreeSearch`.
    """

    def __init__(
        self,
        resident: NDArray[np.bool_],
        expert_time: NDArray[np.float64],
        resident_time: float,
        waste_share: NDArray[np.float64] | None = None,
    ) -> None:
        self.resident_mask = self.resident = resident
        self._met: dict[int, float] | None = None  # bit of an expert -> how likely it is used
        if waste_share is not None:
            self._met = {}
            times = expert_time if expert_time.ndim == 2 else expert_time[:, None]
            # An expert counts by its time, whatever share of it is charged.
            expert_time = np.ones(resident.shape) * times
            self._full_time = expert_time * waste_share[:, None]
        self.expert_time = expert_time
        self.resident_time = resident_time
        self.n_experts = resident.shape[1]
        self._price = _Price(resident, expert_time, resident_time)
        self._parent: list[int] = []
        self._prob: list[float] = []
        self._rows: list[NDArray[np.uint64]] = []
        self._used: list[int] = []  # experts of the node and its ancestors
        self._fresh: list[int] = []  # experts of the node that no ancestor and no root uses
        self._root_union = 0
        self._meet(0)

    @property
    def n_nodes(self) -> int:
        """Number of nodes so far."""
        return len(self._parent)

    def extend(
        self,
        parent: NDArray[np.int32],
        path_prob: NDArray[np.float64],
        experts: NDArray[np.integer],
    ) -> int:
        """Append nodes; return the flat index of the first bad expert id, or -1.

        Nothing is appended when an id is bad.
        """
        rows, bad = pack(experts, self.n_experts)
        if bad < 0:
            self.extend_rows(parent, path_prob, rows)
        return bad

    def extend_rows(
        self,
        parent: NDArray[np.int32],
        path_prob: NDArray[np.float64],
        rows: NDArray[np.uint64],
    ) -> None:
        """Append nodes whose experts are packed already. Roots come with the first call only."""
        parents = parent.tolist()
        self._index(parents, rows)
        self._parent.extend(parents)
        self._prob.extend(path_prob.tolist())
        self._rows.append(rows)
        self._meet(len(self._parent) - len(parents))

    def _meet(self, first: int) -> None:
        """Charge for what the nodes from ``first`` on make likely to be used accordingly less."""
        if self._met is None:
            return
        if first == 0:
            self._met = dict.fromkeys(_bits(self._root_union), 1.0)
        for prob, bits in zip(self._prob[first:], self._fresh[first:], strict=True):
            for b in _bits(bits):
                self._met[b] = self._met.get(b, 0.0) + prob
        priced = self._price.priced
        self.expert_time = self._full_time * (1.0 - np.minimum(self.met_probability(), 1.0))
        self._price = _Price(self.resident, self.expert_time, self.resident_time)
        # Experts that cost nothing any more are still told apart.
        self._price.priced = priced

    def met_probability(self) -> NDArray[np.float64]:
        """Return how likely a committed token uses each expert, with ``waste_share``.

        Of missing experts that cost something; 0 for the others.

        Returns
        -------
        ndarray of float64, shape (L, E)
            Above 1 by rounding, at most.
        """
        assert self._met is not None
        n_layers, n_experts = self.resident.shape
        met = np.zeros((n_layers, -(-n_experts // 64) * 64))
        for b, value in self._met.items():
            met.flat[b] = value
        return met[:, :n_experts]

    def truncate(self, n: int) -> None:
        """Take back all nodes from the n-th on: those of the last call, or all."""
        del self._parent[n:], self._prob[n:], self._used[n:], self._fresh[n:]
        while sum(map(len, self._rows)) > n:
            self._rows.pop()
        if n == 0:
            self._root_union = 0
        self._meet(0)

    def nodes(self) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.uint64]]:
        """Return copies of the nodes' parents, path probabilities and packed rows.

        :meth:`extend_rows` of a new state takes them.
        """
        empty = pack(np.zeros((0, len(self.resident), 1), dtype=np.int64), self.n_experts)[0]
        return (
            np.array(self._parent, dtype=np.int32),
            np.array(self._prob, dtype=np.float64),
            np.concatenate([empty, *self._rows]),
        )

    def _index(self, parents: list[int], rows: NDArray[np.uint64]) -> None:
        """Append to the sets of used and of fresh experts."""
        bits = [self._bits(row) for row in rows]
        for u, own in zip(parents, bits, strict=True):
            if u < 0:
                self._root_union |= own
        for u, own in zip(parents, bits, strict=True):
            above = self._root_union if u < 0 else self._used[u]
            self._used.append(above | own)
            self._fresh.append(own & ~above)

    def novelty(self, nodes: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the price in seconds of the experts that nodes add to their ancestors'.

        Of a root, all of its experts. What another root uses is not counted for the other nodes.
        """
        own = np.concatenate(self._rows)
        return np.array(
            [
                self._price(self._fresh[v] if self._parent[v] >= 0 else self._bits(own[v]))
                for v in nodes.tolist()
            ]
        )

    def _bits(self, row: NDArray[np.uint64]) -> int:
        return int.from_bytes(row.tobytes(), "little") & self._price.priced

    def solve(
        self,
        fixed_time: float,
        node_time: float | NDArray[np.float64],
        rate: float,
        max_nodes: int,
        time_limit: float,
        virtual_parent: NDArray[np.int32] | None = None,
        virtual_prob: NDArray[np.float64] | None = None,
        virtual_time: NDArray[np.float64] | None = None,
    ) -> Result:
        """Find the best ancestor-closed set, as the function of the same name.

        Virtual nodes, one entry per node in each of the three arrays, are appended for this call
        alone: they have a price in seconds of their own and no experts. With them, the figures in
        the result are None.
        """
        parent, prob, fresh = self._parent, self._prob, self._fresh
        extra = [0.0] * len(parent)
        if virtual_parent is not None:
            assert virtual_prob is not None
            assert virtual_time is not None
            parent = parent + virtual_parent.tolist()
            prob = prob + virtual_prob.tolist()
            fresh = fresh + [0] * len(virtual_parent)
            extra = extra + virtual_time.tolist()
        n = len(parent)
        problem = _Problem(
            parent=parent,
            prob=prob,
            fresh=fresh,
            extra=extra,
            price=self._price,
            base=fixed_time + self._price(self._root_union),
            node_time=[node_time * k for k in range(n + 1)]
            if isinstance(node_time, float)
            else node_time[: n + 1].tolist(),
            slope=node_time if isinstance(node_time, float) else None,
            max_nodes=min(max_nodes, n),
            rate=rate,
            deadline=time.monotonic() + time_limit,
            n_rows=self.n_nodes,
        )
        mask, proven, objective, bound, stats = problem.solve()
        figures = None
        if virtual_parent is None:
            figures = evaluate(
                mask,
                np.array(self._prob),
                np.concatenate(self._rows),
                self.resident,
                self.expert_time,
                self.resident_time,
            )
        return mask, proven, objective, bound, stats, figures


class _Price:
    """The price in seconds of a set of experts, given as the bits of one big integer."""

    def __init__(
        self,
        resident: NDArray[np.bool_],
        expert_time: NDArray[np.float64],
        resident_time: float,
    ) -> None:
        n_layers, n_experts = resident.shape
        words = -(-n_experts // 64)
        missing = expert_time if expert_time.ndim == 2 else expert_time[:, None]
        weight = np.zeros((n_layers, words * 64))
        weight[:, :n_experts] = np.where(resident, resident_time, missing)
        self.weight = weight.ravel().tolist()
        values = sorted(set(self.weight) - {0.0})
        flat = weight.ravel()
        # Grouping by value turns a sum over experts into a few bit counts.
        self.groups = (
            [(value, _as_integer(flat == value)) for value in values] if len(values) <= 64 else None
        )
        self.priced = _as_integer(flat != 0.0)

    def __call__(self, bits: int) -> float:
        if self.groups is not None:
            return math.fsum(value * (bits & mask).bit_count() for value, mask in self.groups)
        return math.fsum(self.weight[i] for i in _bits(bits))


def _as_integer(flags: NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def _bits(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


_OUT, _OPEN, _IN = 0, 1, 2

#: Gains below this share of all the probability are taken for zero: ties go to fewer nodes.
_TIE = 1e-13
#: An excess over the incumbent below this share of its tokens is rounding, not improvement.
_PROOF = 1e-12


class _Deadline(Exception):
    """Time is up; ``bound`` is a valid upper bound on what was being maximised."""

    def __init__(self, bound: float) -> None:
        super().__init__(bound)
        self.bound = bound


class _Again(Exception):
    """The incumbent of the ratio rose: bounds at the old lambda are loose now."""


@dataclass
class _Set:
    """A closed set by its members, with its tokens, its price beyond the roots', and its size."""

    members: list[int]
    tokens: float
    price: float

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass
class _Problem:
    parent: list[int]
    prob: list[float]
    fresh: list[int]
    extra: list[float]
    price: _Price
    base: float  # seconds: fixed time and the union of the roots
    node_time: list[float]
    slope: float | None
    max_nodes: int
    rate: float
    deadline: float
    n_rows: int  # nodes from here on, the virtual ones, have no experts

    def __post_init__(self) -> None:
        self.n = len(self.parent)
        self.roots = [v for v, u in enumerate(self.parent) if u < 0]
        self.n_roots = len(self.roots)
        self.is_ratio = math.isnan(self.rate)
        self.late_bound: float | None = None
        self.total = math.fsum(self.prob)
        self.stats = dict.fromkeys(
            (
                "lambda_steps",
                "rounds",
                "sharings",
                "cuts",
                "core_nodes",
                "core_elements",
                "branches",
            ),
            0,
        )

    # ---- sets and their figures

    def make_set(self, members: list[int]) -> _Set:
        union = 0
        for v in members:
            union |= self.fresh[v]
        return _Set(
            members,
            math.fsum(self.prob[v] for v in members),
            self.price(union) + math.fsum(self.extra[v] for v in members),
        )

    def time(self, chosen: _Set) -> float:
        return self.base + self.node_time[chosen.size] + chosen.price

    def allowed(self, size: int) -> bool:
        return size <= self.max_nodes and self.node_time[size] < math.inf

    def terms(self) -> float:
        """Return the tokens that the incumbent's objective is made of.

        Its rounding is relative to them. A surplus is a difference, P - rate * T; this is the sum.
        """
        tokens = self.best.tokens
        return tokens if self.is_ratio else 2.0 * tokens - self.objective(self.best)

    def objective(self, chosen: _Set) -> float:
        time = self.time(chosen)
        if self.is_ratio:
            return chosen.tokens / time
        return chosen.tokens - self.rate * time

    def is_late(self) -> bool:
        """Whether the deadline passed; raises if the solve shall end early."""
        interrupt.look_up()
        return time.monotonic() > self.deadline

    # ---- the driver

    def solve(self) -> tuple[NDArray[np.bool_], bool, float, float, dict[str, Any]]:
        self.best = self.first_set()
        self.lam = self.objective(self.best) if self.is_ratio else self.rate
        affine = self.affine_part()
        if affine is None or not self.solve_affine(*affine):
            self.late_bound = self.solve_table()
        objective = self.objective(self.best)
        mask = np.zeros(self.n, dtype=np.bool_)
        mask[self.best.members] = True
        proven = self.late_bound is None
        bound = objective if self.late_bound is None else max(self.late_bound, objective)
        return mask, proven, objective, bound, {"kernel": NAME, **self.stats}

    def first_set(self) -> _Set:
        """Return the best allowed prefix in the order of path probability."""
        order = sorted(range(self.n), key=lambda v: (self.parent[v] >= 0, -self.prob[v], v))
        best, best_value = None, -math.inf
        union, tokens, extra = 0, 0.0, 0.0
        for size, v in enumerate(order, start=1):
            union |= self.fresh[v]
            tokens += self.prob[v]
            extra += self.extra[v]
            if size >= self.n_roots and self.allowed(size):
                time = self.base + self.node_time[size] + self.price(union) + extra
                value = tokens / time if self.is_ratio else tokens - self.rate * time
                if value > best_value:
                    best, best_value = size, value
                if self.is_late():
                    break
        assert best is not None, "the caller checks that some size is allowed"
        return self.make_set(sorted(order[:best]))

    def affine_part(self) -> tuple[float, float, int] | None:
        """Return a line and the largest size if the allowed sizes are an affine prefix.

        The line is given by the node time of the roots and the slope: an intercept at size 0 would
        be a difference, in which a short time beside a long one gets lost.
        """
        if self.slope is not None:
            return self.slope * self.n_roots, self.slope, self.max_nodes
        first = self.n_roots
        last = first
        while last < self.max_nodes and self.node_time[last + 1] < math.inf:
            last += 1
        beyond = range(last + 1, self.n + 1)
        if not self.node_time[first] < math.inf or any(map(self.allowed, beyond)):
            return None
        slope = (self.node_time[last] - self.node_time[first]) / max(last - first, 1)
        if slope < 0.0:
            return None  # past the table the line would fall below zero
        for k in range(first, last + 1):
            line = self.node_time[first] + slope * (k - first)
            if abs(self.node_time[k] - line) > _PROOF * (self.base + line):
                return None
        return self.node_time[first], slope, last

    # ---- affine node time: Dinkelbach over nested closures

    def solve_affine(self, shortest: float, slope: float, largest: int) -> bool:
        """Solve without the limit on size; return whether the answer respects it."""
        base = self.base + shortest
        lam = self.lam
        alive = list(range(self.n))
        size = self.n + 1
        while True:  # each step shrinks the set or is the last: at most n of them
            before = size
            self.stats["lambda_steps"] += 1
            try:
                chosen = self.closure(lam, lam * slope, self.roots, alive)
            except _Deadline as late:
                # The limit on size only lowers what can be reached: the bound holds with it too.
                excess = late.bound - lam * base
                self.late_bound = lam + max(excess, 0.0) / base if self.is_ratio else excess
                return True
            size = chosen.size
            time = base + slope * (size - self.n_roots) + chosen.price
            excess = chosen.tokens - lam * time
            slack = _PROOF * chosen.tokens
            if not self.is_ratio or excess <= slack or size >= before:
                break
            # Closures shrink as lambda rises: what is out stays out.
            alive = chosen.members
            lam = chosen.tokens / time
            if chosen.size <= largest:
                self.best = chosen
        if chosen.size > largest:
            return False
        if not self.is_ratio or excess >= -slack:
            self.best = chosen  # as good as the incumbent and, being the least closure, no larger
            return True
        # Unless what set this lambda is too large to be the answer.
        return self.objective(self.best) >= lam * (1.0 - _PROOF)

    # ---- any node time: Lagrangian envelope over sizes, branch and bound

    def solve_table(self) -> float | None:
        """Branch and bound; return None for a proof, or a bound when time ran out."""
        trail: list[_Decision] = []
        while True:  # over a tree of at most 2^n decisions; the deadline is seen in it
            try:
                branch = self.explore(trail)
            except _Deadline as late:
                waiting = [decision.bound for decision in trail if decision.inside]
                return max([*waiting, trail[-1].bound if trail else late.bound])
            if branch is not None:
                self.stats["branches"] += 1
                trail.append(branch)
                continue
            while trail and (not trail[-1].inside or not self.matters(trail[-1].bound)):
                trail.pop()
            if not trail:
                return None
            trail[-1].inside = False

    def matters(self, bound: float) -> bool:
        """Whether a bound on the objective leaves room for a better set, or a smaller equal."""
        slack = _PROOF * (self.lam if self.is_ratio else self.terms())
        return bound >= self.objective(self.best) - slack

    def consider(self, chosen: _Set) -> bool:
        """Make ``chosen`` the incumbent if it is better, or as good and smaller."""
        if not self.allowed(chosen.size):
            return False
        gain = self.objective(chosen) - self.objective(self.best)
        slack = _PROOF * (self.lam if self.is_ratio else self.terms())
        if gain > slack or (gain >= -slack and chosen.size < self.best.size):
            self.best = chosen
            if self.is_ratio:
                self.lam = self.objective(chosen)
            return gain > slack
        return False

    def explore(self, trail: list[_Decision]) -> _Decision | None:
        """Bound the sets that agree with ``trail``: None if none is better, else how to branch."""
        state = self.decided(trail)
        least = self.make_set([v for v in range(self.n) if state[v] == _IN])
        most = self.make_set([v for v in range(self.n) if state[v] != _OUT])
        sizes = [k for k in range(least.size, most.size + 1) if self.allowed(k)]
        if not sizes:
            return None
        self.consider(least)
        self.consider(most)
        while True:  # once more whenever the incumbent, and with it lambda, rises
            with contextlib.suppress(_Again):
                return self.envelope(least, most, sizes)

    def envelope(self, least: _Set, most: _Set, sizes: list[int]) -> _Decision | None:
        lam = self.lam
        value = {s.size: s.tokens - lam * s.price for s in (least, most)}
        # Most that tokens - lam * price can be at each size; there is one set of either extreme.
        cap = dict.fromkeys(sizes, math.inf)
        cap.update((k, value[k]) for k in value if k in cap)
        points = {least.size: least, most.size: most}
        tight: set[tuple[int, int]] = set()
        below, above = least, most
        price = self.first_price(sizes)
        is_chord = False
        while True:  # each pass finds a point, a tight chord or the end: at most 2 n of them
            if most.size > least.size:
                try:
                    chosen = self.closure(lam, price, below.members, above.members)
                except _Deadline as late:
                    raise _Deadline(self.objective_bound(cap, sizes)) from late
                worth = chosen.tokens - lam * chosen.price
                for k in sizes:
                    cap[k] = min(cap[k], worth + price * (k - chosen.size))
                if self.consider(chosen) and self.is_ratio:
                    raise _Again
                ends = (below.size, above.size)
                if is_chord and (
                    chosen.size in ends
                    or worth - price * chosen.size
                    <= value[below.size] - price * below.size + self.slack
                ):
                    # The chord is a part of the envelope: no price tells the sizes inside apart.
                    if chosen.size in ends:
                        tight.add(ends)
                    else:
                        tight |= {(below.size, chosen.size), (chosen.size, above.size)}
                points.setdefault(chosen.size, chosen)
                value.setdefault(chosen.size, worth)
            floor = 0.0 if self.is_ratio else self.objective(self.best)
            # A larger set must be better; a smaller one is welcome when it is as good.
            excess = {
                k: cap[k] - lam * (self.base + self.node_time[k]) for k in sizes if k not in points
            }
            rivals = [
                (excess[k], -k)
                for k in excess
                if excess[k] > (floor - self.slack if k < self.best.size else floor + self.slack)
            ]
            if not rivals:
                return None
            k = -max(rivals)[1]
            below = points[max(i for i in points if i < k)]
            above = points[min(i for i in points if i > k)]
            if (below.size, above.size) in tight:
                if self.fill(below, above, k) and self.is_ratio:
                    raise _Again
                inside = set(below.members)
                doors = [v for v in above.members if v not in inside and self.parent[v] in inside]
                v = max(doors, key=lambda v: (self.prob[v], -v))
                return _Decision(v, self.objective_bound(cap, sizes))
            price = (value[above.size] - value[below.size]) / (above.size - below.size)
            is_chord = True

    @property
    def slack(self) -> float:
        return _PROOF * self.terms()

    def objective_bound(self, cap: dict[int, float], sizes: list[int]) -> float:
        """Turn bounds by size at the present lambda into one on the objective."""
        best = -math.inf
        for k in sizes:
            time = self.base + self.node_time[k]
            worth = min(cap[k], self.total)
            if self.is_ratio:
                # P <= worth + lam * price, and the time is at least that of the nodes alone.
                excess = max(worth - self.lam * time, 0.0)
                best = max(best, min(self.lam + excess / time, self.total / time))
            else:
                best = max(best, worth - self.rate * time)
        return best

    def fill(self, below: _Set, above: _Set, size: int) -> bool:
        """Grow ``below`` inside ``above`` to ``size``, the best node first, as a new incumbent."""
        members, inside = list(below.members), set(below.members)
        union = 0
        for v in members:
            union |= self.fresh[v]
        improved = False
        while len(members) < size:
            doors = [v for v in above.members if v not in inside and self.parent[v] in inside]
            gains = [
                (self.prob[v] - self.lam * (self.price(self.fresh[v] & ~union) + self.extra[v]), -v)
                for v in doors
            ]
            v = -max(gains)[1]
            members.append(v)
            inside.add(v)
            union |= self.fresh[v]
            improved |= self.consider(self.make_set(sorted(members)))
            if self.is_late():
                break
        return improved

    def decided(self, trail: list[_Decision]) -> list[int]:
        state = [_IN if u < 0 else _OPEN for u in self.parent]
        for decision in trail:
            v = decision.node
            if not decision.inside:
                state[v] = _OUT
            else:
                while state[v] != _IN:
                    state[v] = _IN
                    v = self.parent[v]
        for v, u in enumerate(self.parent):
            if u >= 0 and state[u] == _OUT:
                state[v] = _OUT
        return state

    def first_price(self, sizes: list[int]) -> float:
        """Return lambda times the slope of the table's lower convex hull at the incumbent."""
        hull: list[int] = []
        g = self.node_time
        for k in sizes:
            while len(hull) >= 2 and (g[k] - g[hull[-2]]) * (hull[-1] - hull[-2]) <= (
                g[hull[-1]] - g[hull[-2]]
            ) * (k - hull[-2]):
                hull.pop()
            hull.append(k)
        if len(hull) == 1:
            return 0.0
        i = max((j for j in range(len(hull) - 1) if hull[j] <= self.best.size), default=0)
        return self.lam * (g[hull[i + 1]] - g[hull[i]]) / (hull[i + 1] - hull[i])

    # ---- fixed lambda and node price: the least maximum-weight closure

    def closure(self, lam: float, price: float, inside: list[int], alive: list[int]) -> _Set:
        """Maximise sum(prob - price) - lam * cost over closed sets between two closed sets."""
        state = [_OUT] * self.n
        for v in alive:
            state[v] = _OPEN
        for v in inside:
            state[v] = _IN
        union = 0
        for v in inside:
            union |= self.fresh[v]
        eps = _TIE * self.total
        gain = [p - price - lam * x for p, x in zip(self.prob, self.extra, strict=True)]
        unsure = [v for v in alive if state[v] == _OPEN]

        def late() -> _Deadline:
            # Roots are not charged for the node price.
            chosen = [v for v in range(self.n) if state[v] == _IN]
            value = math.fsum(gain[v] for v in chosen if self.parent[v] >= 0)
            value += self.n_roots - lam * self.price(union)
            open_ends = (v for v in unsure if state[self.parent[v]] == _IN)
            return _Deadline(value + math.fsum(max(upper[v], 0.0) for v in open_ends))

        while unsure:  # each round but the last decides a node
            self.stats["rounds"] += 1
            rest = [self.fresh[v] & ~union for v in unsure]
            once = twice = 0
            for bits in rest:
                twice |= once & bits
                once |= bits
            solo = once & ~twice
            # Bottom-up: charged for private experts only, a subtree's value is an upper bound;
            # charged for all its experts, a lower bound.
            upper = dict.fromkeys(unsure, 0.0)
            lower = dict.fromkeys(unsure, 0.0)
            own = {}
            for v, bits in zip(reversed(unsure), reversed(rest), strict=True):
                own[v] = gain[v] - lam * self.price(bits & solo)
                upper[v] += own[v]
                lower[v] += gain[v] - lam * self.price(bits)
                u = self.parent[v]
                if state[u] == _OPEN:
                    upper[u] += max(upper[v], 0.0)
                    lower[u] += max(lower[v], 0.0)
            if self.is_late():
                raise late()
            for v, bits in zip(unsure, rest, strict=True):
                above = state[self.parent[v]]
                if above == _OUT or upper[v] <= eps:
                    state[v] = _OUT
                elif above == _IN and lower[v] > eps:
                    state[v] = _IN
                    union |= bits
            left = [v for v in unsure if state[v] == _OPEN]
            if len(left) == len(unsure):
                union |= self.share_costs(unsure, rest, gain, lam, state)
                left = [v for v in unsure if state[v] == _OPEN]
            if len(left) == len(unsure):
                if not self.cut(left, own, rest, twice, lam, state):
                    raise late()
                left = []
            unsure = left
        return self.make_set([v for v in alive if state[v] == _IN])

    def share_costs(
        self,
        core: list[int],
        rest: list[int],
        gain: list[float],
        lam: float,
        state: list[int],
    ) -> int:
        """Decide open nodes by a bound in which users share the price of an expert.

        Any split of an expert's price among its users bounds the value of every closed set. The
        split here is the one that would be tight if the incumbent's open part Y were the answer:
        what Y uses is paid by Y, the rest by the other users, in equal shares. Where the bound
        meets the value of Y, Y is a best set and the least one lies inside it; else a node is
        decided if the bound with it forced the other way falls below the value of Y. Returns the
        experts of the nodes that were taken in.
        """
        self.stats["sharings"] += 1
        best = set(self.best.members)
        inside = [i for i, v in enumerate(core) if v in best]
        outside = [i for i, v in enumerate(core) if v not in best]
        planned = 0
        for i in inside:
            planned |= rest[i]
        worth = math.fsum(gain[core[i]] for i in inside) - lam * self.price(planned)
        upper = {v: gain[v] for v in core}
        for part, gone in ((inside, 0), (outside, planned)):
            # Experts with one, two or three users in this part, or more; nodes without a row, the
            # virtual ones, are no users.
            users = sum(core[i] < self.n_rows for i in part)
            low = high = more = 0
            for i in part:
                bits = rest[i] & ~gone
                carry = low & bits
                low ^= bits
                more |= high & carry
                high ^= carry
            planes = (low & ~high & ~more, 1), (high & ~low & ~more, 2), (low & high & ~more, 3)
            for i in part:
                for plane, share in (*planes, (more, users)):
                    if plane:
                        upper[core[i]] -= lam * self.price(rest[i] & plane) / share
        bound = 0.0
        for v in reversed(core):
            u = self.parent[v]
            if state[u] == _OPEN:
                upper[u] += max(upper[v], 0.0)
            else:
                bound += max(upper[v], 0.0)
        excess = bound - worth
        slack = _TIE * self.total
        if excess <= slack:
            for i in outside:
                state[core[i]] = _OUT
            return 0
        taken = 0
        # What the bound loses when a node, and so its ancestors, is forced in; and when it, and so
        # its subtree, is forced out, of which an ancestor passes on no more than it is worth.
        forced_in: dict[int, float] = {}
        forced_out: dict[int, float] = {}
        for v in core:
            u = self.parent[v]
            forced_in[v] = max(-upper[v], 0.0) + forced_in.get(u, 0.0)
            forced_out[v] = min(max(upper[v], 0.0), forced_out.get(u, math.inf))
        for v, bits in zip(core, rest, strict=True):
            if forced_in[v] > excess + slack:
                state[v] = _OUT
                continue
            if forced_out[v] > excess + slack and state[self.parent[v]] == _IN:
                state[v] = _IN
                taken |= bits
        return taken

    def cut(
        self,
        core: list[int],
        own: dict[int, float],
        rest: list[int],
        shared: int,
        lam: float,
        state: list[int],
    ) -> bool:
        """Decide the nodes that persistency leaves open, by one minimum cut.

        False, with nothing decided, if the deadline passed.
        """
        users: dict[int, int] = {}
        for i, bits in enumerate(rest):
            for b in _bits(bits & shared):
                users[b] = users.get(b, 0) | 1 << i
        weights: dict[int, float] = {}
        for b, mask in users.items():
            weights[mask] = weights.get(mask, 0.0) + lam * self.price.weight[b]
        self.stats["cuts"] += 1
        self.stats["core_nodes"] = max(self.stats["core_nodes"], len(core))
        self.stats["core_elements"] = max(self.stats["core_elements"], len(weights))
        index = {v: i for i, v in enumerate(core)}
        above = [index.get(self.parent[v], -1) for v in core]
        # A node must bring more than rounding could, here as in the bounds.
        profit = [own[v] - _TIE * self.total for v in core]
        chosen = _least_closure(profit, above, weights, self.is_late)
        if chosen is None:
            return False
        for v, keep in zip(core, chosen, strict=True):
            state[v] = _IN if keep else _OUT
        return True


@dataclass
class _Decision:
    """One branch: ``node`` forced in with its ancestors, later out with its subtree."""

    node: int
    bound: float
    inside: bool = True


def _least_closure(
    profit: list[float],
    above: list[int],
    weights: dict[int, float],
    is_late: Callable[[], bool],
) -> list[bool] | None:
    """Return the least closure of maximum weight, by a maximum flow in scaled integers.

    Parameters
    ----------
    profit : list of float
        Of each node.
    above : list of int
        The node that a node requires, or -1.
    weights : dict
        Bit mask of users -> price paid if any of them is chosen.
    is_late : callable
        Whether to give up, which returns None.
    """
    total = math.fsum(p for p in profit if p > 0.0)
    if total <= 0.0:
        return [False] * len(profit)
    scale = 2.0**52 / total
    n, m = len(profit), len(weights)
    source, sink = n + m, n + m + 1
    graph: list[list[list[int]]] = [[] for _ in range(n + m + 2)]  # [head, capacity, reverse arc]
    infinite = 2**54

    def arc(tail: int, head: int, capacity: int) -> None:
        graph[tail].append([head, capacity, len(graph[head])])
        graph[head].append([tail, 0, len(graph[tail]) - 1])

    for v, p in enumerate(profit):
        size = min(round(abs(p) * scale), infinite)
        arc(source, v, size) if p > 0.0 else arc(v, sink, size)
        if above[v] >= 0:
            arc(v, above[v], infinite)
    for e, (mask, weight) in enumerate(weights.items(), start=n):
        arc(e, sink, min(round(weight * scale), infinite))
        for v in _bits(mask):
            arc(v, e, infinite)
    reached = _saturated(graph, source, sink, is_late)
    return None if reached is None else [v in reached for v in range(n)]


def _saturated(
    graph: list[list[list[int]]], source: int, sink: int, is_late: Callable[[], bool]
) -> dict[int, int] | None:
    """Send a maximum flow and return what the source still reaches, or None when time is up."""
    # Dinic: a level graph, then a blocking flow in it. The sink is further away in each phase than
    # in the last, so there are at most as many phases as vertices.
    while True:
        level = {source: 0}
        queue = [source]
        for tail in queue:
            for head, capacity, _ in graph[tail]:
                if capacity and head not in level:
                    level[head] = level[tail] + 1
                    queue.append(head)
        if sink not in level:
            return level
        cursor = [0] * len(graph)
        path: list[list[int]] = []
        v = source
        while True:  # each path fills an arc, each retreat ends one
            if v == sink:
                if is_late():
                    return None
                amount = min(a[1] for a in path)
                for a in path:
                    a[1] -= amount
                    graph[a[0]][a[2]][1] += amount
                path, v = [], source
                continue
            arcs = graph[v]
            while cursor[v] < len(arcs):
                a = arcs[cursor[v]]
                if a[1] and level.get(a[0], -1) == level[v] + 1:
                    break
                cursor[v] += 1
            else:
                if v == source:
                    break
                a = path.pop()
                v = graph[a[0]][a[2]][0]
                cursor[v] += 1
                continue
            path.append(a)
            v = a[0]
