"""The exact choice after each drafted level, and a rule that says when to stop drafting."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, Solution, TreeSearch
from specfit_opt.checks import OneOf
from specfit_opt.solution import node_time_at

from ..expert_union import expert_union
from ._bias import WasteBias
from ._guard import PlainGuard, Stock
from ._pool import for_sizes
from ._repayment import LoadRepayment
from ._waste import WastePrices
from .registry import Choice, DraftView, Outcome, Policy, PolicyKind, positive

#: The stop rules and what they do.
STOP_RULES = {
    "expected": "stop when the next level is not expected to win",
    "certified": "stop when no continuation can win",
    "naive": "stop once the best value has fallen",
    "gain-share": "stop when the next level gains less than its share of the pass's tokens",
    "none": "draft every level",
}

#: What a choice can maximise.
OBJECTIVES = {
    "waste": "tokens per second beside the loads that the text needs anyway",
    "ratio": "tokens per second of the pass",
    "surplus": "tokens beyond what the pass's time is worth at the running rate",
}


class SpecFitPolicy(Policy):
    """Grow a :class:`specfit_opt.TreeSearch` level by level, as far as it is expected to pay.

    Parameters
    ----------
    stop : {"expected", "certified", "naive", "gain-share", "none"}
        When to stop drafting, decided before each level. ``"certified"``: if no continuation,
        however long, can beat what is in hand, at the prices of the tree so far. ``"expected"``: as
        certified, and also if one more level is not expected to win at the acceptance seen so far.
        ``"naive"``: after the first level that lowers the best value. ``"gain-share"``: if the next
        level is expected to gain fewer tokens than its share of the pass's time earns, see Notes.
        ``"none"``: never; with ``levels`` a fixed depth.
    objective : {"waste", "ratio", "surplus"}
        What the choice maximises, see Notes.
    levels, top_k, width : int
        Most levels to draft, children of each expanded node, and nodes expanded per level.
    guard : bool
        Hold speculation to what plain decoding would have taken, see Notes.
    repayment : bool
        With the objective "waste", charge a load in vain only with what the cache is not expected
        to pay back (`LoadRepayment`).

    Raises
    ------
    InvalidInputError
        If an option is out of range.

    Notes
    -----
    **Objective.** ``"ratio"`` is tokens over seconds of the pass, ``"surplus"`` tokens less seconds
    at the decode's running rate; both charge a pass for every expert that it loads. But plain
    decoding has to load the experts of the text's tokens too. ``"waste"`` charges an expert only
    with the probability that no committed token uses it (`WastePrices`), and a rejected node with
    what such nodes were seen to load beyond the prediction (`WasteBias`); the ratio of tokens to
    seconds so counted is maximised exactly. A load in vain is repaid if the text comes to use the
    expert before it is evicted, less what is evicted for it; how often that is so is learned per
    layer (`LoadRepayment`), and the rest is charged. The charge per rejected node enters as one per
    node: ``P / (T + beta (n - P))`` and ``P / (T + beta n)`` have the same maximiser, because the
    reciprocals differ by beta.

    **Gain share.** With P tokens expected of the best subtree so far and T predicted seconds of its
    whole cycle, a level that takes t seconds is drafted if its expected gain is at least P t / T,
    so that drafting it earns no less than the pass as a whole. The gain is that of the verified
    nodes: a token for each node of the subtree that the level would extend, by its path probability
    and the acceptance seen so far at the depth. What verifying the new nodes and loading their
    experts takes is not asked. This is how drafting is reported to be stopped by EAGLE-4.

    **Drafting nothing.** Before the first level nothing is known of a position but its root, so
    there the expected rule takes the child to cause no loads, and what speculation brought so far
    decides: a guard runs plain decoding of the same tokens beside the real thing, on the routing
    that verification shows and a cache of its own (`PlainGuard`). Speculation may lose a pass and a
    half of plain decoding while it learns, and goes on while its mean gain is not below zero beyond
    doubt; once it has lost, nothing is drafted for a while, and for ever longer after tries that
    fail (`SpeculationBudget`).
    """

    priced = True

    def __init__(
        self,
        stop: str = "expected",
        *,
        objective: str = "waste",
        levels: int = 6,
        top_k: int = 4,
        width: int = 4,
        guard: bool = True,
        repayment: bool = True,
        name: str = "specfit",
    ) -> None:
        self.stop = OneOf(tuple(STOP_RULES))(stop, "stop")
        self.objective = OneOf(tuple(OBJECTIVES))(objective, "objective")
        self.levels = positive(levels, "levels")
        self.top_k = positive(top_k, "top_k")
        self.width = positive(width, "width")
        self.guarded = bool(guard)
        self.repaid = bool(repayment) and self.objective == "waste"
        self.name = name
        self._guard = PlainGuard()
        self._bias = WasteBias()
        self._repayment: LoadRepayment | None = None
        self._share: NDArray[np.float64] | None = None
        self._search: _Search | None = None

    def fresh(self) -> Policy:
        """Return the policy without what it has learned."""
        return SpecFitPolicy(
            self.stop,
            objective=self.objective,
            levels=self.levels,
            top_k=self.top_k,
            width=self.width,
            guard=self.guarded,
            repayment=self.repaid,
            name=self.name,
        )

    def start(self) -> None:
        """Begin another text."""
        self._guard.start()
        if self._repayment is not None:
            self._repayment.start()

    def choose(self, view: DraftView) -> Choice:
        """Return the best subtree of the levels that the rule had drafted."""
        self._search = None
        if self.repaid:
            if self._repayment is None:
                self._repayment = LoadRepayment(*view.resident.shape)
            self._repayment.look(view.resident)
            self._share = self._repayment.share(view.slots)
        if self.guarded:
            self._guard.look(view)
            if not self._guard.allows:
                reason = "speculation has lost what it may lose against plain decoding"
                return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0, reason=reason)
        # The most nodes that a tree can have, so that one table of node times serves all levels.
        most = 1 + self.top_k * (1 + self.width * (self.levels - 1))
        cost = for_sizes(view.cost_model, most)
        if self.stop == "expected" and self.objective == "waste" and not _may_pay(view, cost):
            reason = "drafting is not expected to pay for its own time"
            return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0, reason=reason)
        search = _Search(view, cost, self.objective, self._share)
        if self.objective == "waste":
            self._bias.expect(search.root_load)
        reason = self._grow(view, search)
        self._search = search
        return search.choice(reason)

    def observe(self, outcome: Outcome) -> None:
        """Learn what was loaded in vain, and whether speculation pays."""
        rows = np.searchsorted(outcome.choice.nodes, outcome.accepted)
        stock: Stock | None = None
        if self._repayment is not None and self._share is not None:
            self._repayment.learn(outcome.experts, rows, outcome.misses)
            stock = Stock(self._repayment.unpaid, 1.0 - self._share)
        if self.guarded:
            self._guard.learn(outcome, stock)
        search = self._search
        if search is None or self.objective != "waste" or not outcome.levels:
            return
        if len(outcome.choice.nodes) == 1:
            self._bias.doubt()
            return
        wasted = search.load_time(outcome.experts) - search.load_time(outcome.experts[rows])
        rejected = len(outcome.choice.nodes) - search.solution.expected_tokens
        self._bias.learn(wasted - search.waste_time(outcome.choice.nodes), rejected)

    def _grow(self, view: DraftView, search: _Search) -> str:
        """Draft while the rule says so, and return why it ended."""
        # With these two, _may_pay has decided on the first level; other rules look at the root.
        decided = self.stop == "expected" and self.objective == "waste"
        if not decided:
            search.extend(0.0)
        while view.levels < self.levels:
            left = self.levels - view.levels
            if view.max_levels is not None:
                left = min(left, view.max_levels - view.levels)
            if left < 1:
                return "the drafter drafts no deeper"
            if self.stop in ("expected", "certified", "gain-share") and not decided:
                if self.stop == "gain-share":
                    go, reason = search.gain_share()
                else:
                    go, reason = search.advice(left, self.stop == "expected")
                if not go:
                    return reason
            decided = False
            if not view.grow(self.top_k, self.width):
                if not search.n_nodes:
                    search.extend(0.0)
                return "the drafter had no more"
            before = search.solution.objective if search.n_nodes else 0.0
            search.extend(self._bias.seconds)
            if self.stop == "naive" and search.solution.objective < before:
                return "the last level lowered the best value"
        return "all levels were drafted"


class _Search:
    """The exact choice from one cycle's tree while it grows.

    Attributes
    ----------
    n_nodes : int
        Nodes taken in so far.
    solution : Solution
        At the prices of the objective.
    seconds : float
        Spent so far, drafting and prediction excluded.
    """

    solution: Solution

    def __init__(
        self,
        view: DraftView,
        cost: CostModel,
        objective: str,
        share: NDArray[np.float64] | None,
    ) -> None:
        self._view = view
        self._cost = cost
        self._resident = np.array(view.resident)
        n_layers, n_experts = self._resident.shape
        self._time = cost.expert_table(n_layers, n_experts)
        self._share = np.ones(n_layers) if share is None else share
        self._prices = WastePrices(self._time) if objective == "waste" else None
        self._root = view.experts()[:1]
        self._drafting = 0.0
        rate = view.rate if objective == "surplus" else None
        self._search = TreeSearch(cost, n_layers, n_experts, self._resident, rate=rate)
        self.n_nodes = 0
        self.seconds = 0.0

    @property
    def root_load(self) -> float:
        """Seconds that the root's predicted experts take to load."""
        return self.load_time(self._root)

    def extend(self, charge: float) -> None:
        """Take in what was drafted since the last call, and solve.

        Parameters
        ----------
        charge : float
            Seconds per rejected node beyond its predicted loads; for the objective "waste".
        """
        view, first = self._view, self.n_nodes
        experts = view.experts(first)
        began = perf_counter()
        parent, path_prob = view.parent, view.path_prob
        drafting = view.draft_time
        self.n_nodes = len(parent)
        if self._prices is not None:
            if not first:
                self._prices.extend(parent[:1], path_prob[:1], experts[:1])
            new = max(first, 1)
            if new < self.n_nodes:
                self._prices.extend(parent[new:], path_prob[new:], experts[new - first :])
            # A level changes the prices of experts that were there before, too.
            self._search.reprice(self._charged(charge))
        self.solution = self._search.extend(
            parent[first:].astype(np.int32), path_prob[first:], experts, drafting - self._drafting
        )
        self._drafting = drafting
        self.seconds += perf_counter() - began

    def advice(self, levels: int, expected: bool) -> tuple[bool, str]:
        """Return whether another level is worth drafting, and why."""
        view = self._view
        if expected:
            # The expected rule looks one level ahead and is the stricter one, so the bounds of
            # deeper continuations cannot change what it says.
            levels = 1
        began = perf_counter()
        advice = self._search.advise(
            view.level_time,
            view.acceptance if expected else None,
            levels=levels,
            frontier=view.frontier,
        )
        self.seconds += perf_counter() - began
        return advice.go, advice.reason

    def gain_share(self) -> tuple[bool, str]:
        """Return whether another level gains its share of the pass's tokens, and why."""
        began = perf_counter()
        view, solution = self._view, self.solution
        chance = view.acceptance
        extended = view.frontier[solution.mask[view.frontier]]
        gain = float(view.path_prob[extended].sum()) * chance[min(view.levels + 1, len(chance) - 1)]
        seconds, _ = self._predicted(solution.nodes)
        share = solution.expected_tokens * view.level_time / seconds
        self.seconds += perf_counter() - began
        reason = f"one more level is expected to gain {gain:.6g} tokens, its share is {share:.6g}"
        return gain >= share, reason

    def load_time(self, experts: NDArray[np.integer]) -> float:
        """Return the seconds that the union of ``experts``, shape (n, L, k), takes to load."""
        return float(self._time[self._missing(experts)].sum())

    def waste_time(self, nodes: NDArray[np.int64]) -> float:
        """Return the seconds that ``nodes`` are expected to load in vain; objective "waste"."""
        assert self._prices is not None
        missing = self._missing(self._view.experts()[nodes])
        return float(self._prices.table()[missing].sum())

    def choice(self, reason: str) -> Choice:
        """Return what was chosen, with predictions at full prices."""
        began = perf_counter()
        solution = self.solution
        nodes = solution.nodes
        seconds, missing = self._predicted(nodes)
        self.seconds += perf_counter() - began
        return Choice(
            nodes,
            objective=solution.objective,
            expected_tokens=solution.expected_tokens,
            predicted_time=seconds,
            predicted_misses=missing.sum(axis=1),
            search_seconds=self.seconds,
            reason=reason,
        )

    def _predicted(self, nodes: NDArray[np.int64]) -> tuple[float, NDArray[np.bool_]]:
        """Return the seconds of the whole cycle at full prices, and what it loads, (L, E)."""
        missing = self._missing(self._view.experts()[nodes])
        compute = self._cost.fixed_time + node_time_at(self._cost, len(nodes))
        return compute + self._drafting + float(self._time[missing].sum()), missing

    def _missing(self, experts: NDArray[np.integer]) -> NDArray[np.bool_]:
        return expert_union(experts, self._resident.shape[1]) & ~self._resident

    def _charged(self, charge: float) -> CostModel:
        assert self._prices is not None  # the objective is "waste"
        cost, share = self._cost, self._share
        time = cost.node_time
        # What rejected nodes load beyond the prediction is repaid as the rest is.
        charge *= float(share.mean())
        if isinstance(time, float):
            time = time + charge
        else:
            time = time + charge * np.arange(len(time))
        prices = self._prices.table() * share[:, None]
        return CostModel(cost.fixed_time, time, prices, cost.resident_time)


def _may_pay(view: DraftView, cost: CostModel) -> bool:
    """Return what the expected rule says of the first level for the objective "waste".

    The root's experts cost nothing, so neither do those of its virtual child, and the rule is a
    comparison of two ratios. Decided before anything is predicted, so that plain decoding costs
    nothing.
    """
    if view.max_levels is not None and view.max_levels < 1:
        return False
    acceptance = view.acceptance
    alone = cost.fixed_time + node_time_at(cost, 1)
    both = cost.fixed_time + node_time_at(cost, 2) + view.level_time
    return (1.0 + acceptance[min(1, len(acceptance) - 1)]) * alone > both


def _make(number: int | None, **options: Any) -> Policy:
    return SpecFitPolicy(**options)


def kind_of(stop: str) -> PolicyKind:
    """Return the registry entry of the stop rule ``stop`` under a name of its own."""
    name = f"specfit-{stop}"

    def make(number: int | None, **options: Any) -> Policy:
        return SpecFitPolicy(stop, name=name, **options)

    return PolicyKind(
        name=name,
        make=make,
        summary=f"exact choice level by level; {STOP_RULES[stop]}",
        source=_SOURCE,
    )


def _make_depth(number: int | None, **options: Any) -> Policy:
    levels = positive(number, "the depth of a draft")
    return SpecFitPolicy("none", levels=levels, name=f"specfit-depth-{levels}", **options)


_SOURCE = "SpecFit (arXiv 2610.15417); sections on stopping and on the long run of the theory page"

KIND = PolicyKind(
    name="specfit",
    make=_make,
    summary="exact choice level by level, drafting as long as it is expected to pay",
    source=_SOURCE,
)

DEPTH = PolicyKind(
    name="specfit-depth-K",
    make=_make_depth,
    summary="exact choice from K drafted levels",
    source=_SOURCE,
    default=4,
)
