"""What a choice could be worth to a policy that knew the routing ahead, for comparison."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, TreeSearch
from specfit_opt.caches import CACHE_RULES, DEFAULT_CACHE_RULE, SimulatedCache
from specfit_opt.control.waste_prices import WastePrices
from specfit_opt.errors import InvalidInputError
from specfit_opt.expert_union import expert_union
from specfit_opt.policies import Choice, DraftView, Outcome, Policy
from specfit_opt.policies.drafting import for_sizes
from specfit_opt.policies.policy import number as positive
from specfit_opt.replay import RecordedView
from specfit_opt.solution import node_time_at

#: Shares of the price of an unneeded load under which the candidates are the exact choices.
SHARES = (1.0, 0.75, 0.5, 0.25, 0.1, 0.0)


@dataclass(frozen=True, eq=False)
class Prospect:
    """A candidate and what it is worth.

    Attributes
    ----------
    nodes : ndarray of int64, shape (m,)
        Of the tree with all levels; those of a tree with fewer levels have the same ids.
    levels : int
        Levels to draft for it.
    first : float
        Tokens of surplus that the pass is expected to bring.
    later : float
        The same of what follows.
    """

    nodes: NDArray[np.int64]
    levels: int
    first: float
    later: float

    @property
    def value(self) -> float:
        """Tokens of surplus in all."""
        return self.first + self.later


class Lookahead(Policy):
    r"""Take the candidate that is worth most over this pass and the next, the cache played ahead.

    Clairvoyant, so that it serves replays only: of the positions to come it sees the pools
    that will be drafted, the true routing of their nodes and the experts that the text uses. Which
    drafts are accepted it does not know, but weighs by calibrated path probability. If it knew that
    too, no load would ever be for nothing, and it could say nothing about the price of one.

    Parameters
    ----------
    passes : int
        2; or 1, to look at this pass alone.
    tail : int
        After these play ahead also plain decoding, up to this many tokens from here. 0: what is
        then in the cache counts nothing.
    levels, top_k, width : int
        As for the policy ``specfit``.
    cache_policy : str
        What the simulated decode uses, by name.

    Raises
    ------
    InvalidInputError
        If an option is out of range.

    Notes
    -----
    **Candidates.** The exact choices at six shares of the price of an unneeded load, from all to
    none, each with the number of levels that suits it best, and the root alone. Only levels that
    the candidate needs are paid for: how many these are is known here before drafting.

    **Value.** A pass is worth :math:`P - \lambda (T - B)`: expected tokens, less the worth of its
    seconds beside those, :math:`B`, that the experts of the committed tokens take to load, each
    once, from the cache as it is before this pass. :math:`B` depends on nothing but how far the
    text gets and makes candidates comparable that end at different positions. :math:`\lambda` is
    tokens over :math:`T - B` in all passes so far. A candidate runs on a copy of the cache. For
    every number of tokens that it may commit, the second pass is the exact choice, with every load
    for nothing charged in full, at the position where that leaves the text. Its value, with what it
    has to load from that cache, counts by the probability of that number. A tail is worth
    :math:`\lambda` times the seconds that plain decoding waits less for the rest of the tokens,
    from where the passes are expected to end, than if it had begun here.

    The second pass takes the pools of the recorded text also where another branch of the draft
    would have been accepted: no others are recorded.

    Takes O(candidates x levels^2) exact solves and, with a tail, O(candidates x levels x tail)
    passes of a cache: tens of milliseconds.
    """

    predicts = False

    def __init__(
        self,
        passes: int = 2,
        *,
        tail: int = 0,
        levels: int = 6,
        top_k: int = 4,
        width: int = 4,
        cache_policy: str = DEFAULT_CACHE_RULE,
    ) -> None:
        if passes not in (1, 2):
            raise InvalidInputError(f"passes must be 1 or 2, got {passes!r}")
        self._passes = passes
        self._tail = positive(tail, "tail") if tail else 0
        self._levels = positive(levels, "levels")
        self._top_k = positive(top_k, "top_k")
        self._width = positive(width, "width")
        self._rule = CACHE_RULES.find(cache_policy)
        self.name = f"lookahead-{passes}" + (f"-tail-{tail}" if tail else "")
        self._cache: SimulatedCache | None = None
        self._needed: NDArray[np.float64] = np.zeros(1)
        self._counts = False
        self._tokens = self._seconds = 0.0

    def fresh(self) -> Policy:
        """Return the policy without what it has seen."""
        return Lookahead(
            self._passes,
            tail=self._tail,
            levels=self._levels,
            top_k=self._top_k,
            width=self._width,
            cache_policy=self._rule.name,
        )

    def start(self) -> None:
        """Begin another text, with an empty cache."""
        self._cache = None

    def choose(self, view: DraftView) -> Choice:
        """Return the candidate of highest value; draft what it needs.

        Raises
        ------
        InvalidInputError
            As :meth:`prospects` does.
        """
        best = max(self.prospects(view), key=lambda prospect: prospect.value)
        while view.levels < best.levels:
            view.grow(self._top_k, self._width)
        tokens = float(view.path_prob[best.nodes].sum())
        return Choice(best.nodes, expected_tokens=tokens)

    def prospects(self, view: DraftView) -> list[Prospect]:
        """Return the candidates and what they are worth, without drafting.

        Parameters
        ----------
        view : RecordedView
            Before the first level.

        Raises
        ------
        InvalidInputError
            If the view is not that of a simulated decode, or its cache is not as expected.
        """
        view = _recorded(view)
        cache = self._followed(view)
        most = 1 + self._top_k * (1 + self._width * (self._levels - 1))
        cost = for_sizes(view.cost_model, most)
        pools: dict[int, _Pool | None] = {}

        def pool(tokens: int) -> _Pool | None:
            if tokens not in pools:
                ahead = view.ahead(tokens)
                shape = self._levels, self._top_k, self._width
                pools[tokens] = None if ahead is None else _Pool(ahead, cost, shape)
            return pools[tokens]

        here = pool(0)
        assert here is not None
        self._counts = here.n_levels > 0  # where nothing can be drafted, there is no choice
        self._needed = _needed_seconds(view, cost, 2 * (self._levels + 1))
        tail = _Tail(view, cache, cost, self._tail)
        rate = self._tokens / self._seconds if self._tokens else here.best(cache.resident, None)[2]
        levels_of = {(0,): 0}
        for share in SHARES:
            nodes, levels, _ = here.best(cache.resident, rate, share)
            levels_of[tuple(nodes.tolist())] = levels
        prospects = []
        for chosen, levels in levels_of.items():
            nodes, after = np.array(chosen, dtype=np.int64), copy.deepcopy(cache)
            first = here.surplus(nodes, levels, after, rate, self._needed)
            later = 0.0
            for tokens, chance in enumerate(here.committed(nodes).tolist()):
                if chance <= 0.0:
                    continue
                left, end, value = copy.deepcopy(after), tokens, 0.0
                left.committed(tokens)
                there = pool(tokens) if self._passes == 2 else None
                if there is not None:
                    best, deep, _ = there.best(after.resident, rate)
                    value = there.surplus(best, deep, left, rate, self._needed[tokens:])
                    end += round(there.expected(best))
                later += chance * (value + rate * tail.saved(left, end))
            prospects.append(Prospect(nodes, levels, first, later))
        return prospects

    def observe(self, outcome: Outcome) -> None:
        """Let the cache that is expected go along, and the running rate."""
        assert self._cache is not None  # choose comes first
        self._cache.use(expert_union(outcome.experts, self._cache.resident.shape[1]))
        self._cache.committed(outcome.committed)
        if self._counts:
            self._tokens += outcome.committed
            self._seconds += outcome.seconds - float(self._needed[outcome.committed])

    def _followed(self, view: RecordedView) -> SimulatedCache:
        """Return the cache that passes so far have led to, in this policy's own hands."""
        if self._cache is None:
            n_layers, n_experts = view.resident.shape
            self._cache = SimulatedCache(self._rule, view.slots, n_layers, n_experts)
        if not np.array_equal(self._cache.resident, view.resident):
            raise InvalidInputError(
                f"the cache is not what {self._rule.name} would hold after the passes so far; "
                "give Lookahead the cache_policy of the replay, and observe every pass"
            )
        return self._cache


class _Pool:
    """One position with all its levels drafted."""

    def __init__(self, view: RecordedView, cost: CostModel, shape: tuple[int, int, int]) -> None:
        levels, top_k, width = shape
        self._costs: dict[float, list[CostModel]] = {}
        self._cost = cost
        self._time = cost.expert_table(*view.resident.shape)
        ends, self._drafting = [1], [0.0]
        while view.levels < levels and view.grow(top_k, width):
            ends.append(len(view.parent))
            self._drafting.append(view.draft_time)
        self._parts = [slice(a, b) for a, b in pairwise([0, *ends])]
        self._parent, self._depth, self._path = view.parent, view.depth, view.path_prob
        self._experts = view.true_experts.astype(np.int32)
        waste, self._prices = WastePrices(self._time), []
        for part in self._parts:
            waste.extend(self._parent[part], self._path[part], self._experts[part])
            self._prices.append(waste.table())

    @property
    def n_levels(self) -> int:
        """Levels below the root."""
        return len(self._parts) - 1

    def best(
        self, resident: NDArray[np.bool_], rate: float | None, share: float = 1.0
    ) -> tuple[NDArray[np.int64], int, float]:
        """Return the best subtree of any number of levels, that number, and the objective.

        Parameters
        ----------
        resident : ndarray of bool, shape (L, E)
        rate : float or None
            Maximise the surplus at this rate; None: the ratio.
        share : float
            Of the price of an unneeded load.
        """
        n_layers, n_experts = resident.shape
        found: list[tuple[NDArray[np.int64], int, float]] = []
        search: TreeSearch | None = None
        for level, (part, cost) in enumerate(zip(self._parts, self._at(share), strict=True)):
            if search is None:
                search = TreeSearch(cost, n_layers, n_experts, resident, rate=rate)
            else:
                search.reprice(cost)
            solution = search.extend(
                self._parent[part].astype(np.int32),
                self._path[part],
                self._experts[part],
                self._drafting[level] - search.draft_time,
            )
            found.append((solution.nodes, level, solution.objective))
        return max(found, key=lambda entry: entry[2])

    def _at(self, share: float) -> list[CostModel]:
        """Return the cost model of each number of levels."""
        if share not in self._costs:
            fixed, node = self._cost.fixed_time, self._cost.node_time
            self._costs[share] = [CostModel(fixed, node, p * share) for p in self._prices]
        return self._costs[share]

    def expected(self, nodes: NDArray[np.int64]) -> float:
        """Return the expected number of committed tokens."""
        return float(self._path[nodes].sum())

    def committed(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the probability of each number of committed tokens, from 0 on."""
        ends = self._path[nodes]  # a copy: that the accepted path reaches a node, then ends there
        below = nodes[1:]
        np.subtract.at(ends, np.searchsorted(nodes, self._parent[below]), self._path[below])
        return np.bincount(self._depth[nodes] + 1, np.maximum(ends, 0.0)).astype(np.float64)

    def surplus(
        self,
        nodes: NDArray[np.int64],
        levels: int,
        cache: SimulatedCache,
        rate: float,
        needed: NDArray[np.float64],
    ) -> float:
        """Run a pass on ``cache`` and return the tokens of surplus that it is expected to bring.

        Parameters
        ----------
        nodes : ndarray of int64, shape (m,)
        levels : int
            Levels drafted for it.
        cache : SimulatedCache
            Is changed.
        rate : float
        needed : ndarray of float64
            Seconds that the text's loads take before each position from here on.
        """
        missed = cache.use(expert_union(self._experts[nodes], self._time.shape[1]))
        compute = self._cost.fixed_time + node_time_at(self._cost, len(nodes))
        seconds = compute + self._drafting[levels] + float(self._time[missed].sum())
        chance = self.committed(nodes)
        beside = float(chance @ (needed[: len(chance)] - needed[0]))
        return self.expected(nodes) - rate * (seconds - beside)


class _Tail:
    """Plain decoding of the text from here, for comparison with that from another cache."""

    def __init__(
        self, view: RecordedView, cache: SimulatedCache, cost: CostModel, length: int
    ) -> None:
        shape = view.resident.shape
        self._time = cost.expert_table(*shape)
        self._used: list[NDArray[np.bool_]] = []
        while len(self._used) < length and (ahead := view.ahead(len(self._used))) is not None:
            self._used.append(expert_union(ahead.true_experts[:1], shape[1]))
        self._waits = self._run(copy.deepcopy(cache), 0)

    def saved(self, cache: SimulatedCache, first: int) -> float:
        """Return the seconds that plain decoding from position ``first`` on waits less.

        ``cache`` is what it begins with, and is changed.
        """
        return math.fsum(self._waits[first:]) - math.fsum(self._run(cache, first))

    def _run(self, cache: SimulatedCache, first: int) -> list[float]:
        return [float(self._time[cache.use(used)].sum()) for used in self._used[first:]]


def _recorded(view: DraftView) -> RecordedView:
    if not isinstance(view, RecordedView):
        raise InvalidInputError(
            "lookahead knows the routing of positions to come, which only a recording shows; use "
            "it with specfit_opt.replay"
        )
    return view


def _needed_seconds(view: RecordedView, cost: CostModel, reach: int) -> NDArray[np.float64]:
    """Return what the text's tokens take to load that are before each position from here on.

    Each expert once. Shape (reach + 1,). A position past the end of the text takes the mean.
    """
    time = cost.expert_table(*view.resident.shape)
    held = np.array(view.resident)
    waits: list[float] = []
    for tokens in range(reach):
        ahead = view.ahead(tokens)
        if ahead is None:
            waits.append(sum(waits) / len(waits))
        else:
            used = expert_union(ahead.true_experts[:1], held.shape[1])
            waits.append(float(time[used & ~held].sum()))
            held |= used
    return np.concatenate([[0.0], np.cumsum(waits)])
