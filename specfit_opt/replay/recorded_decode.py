"""The engine of a replay: a policy decodes recorded texts, and learns as it would live."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..caches import CACHE_RULES, DEFAULT_CACHE_RULE, SimulatedCache
from ..control.acceptance_calibration import AcceptanceCalibrator
from ..control.correction import CycleMeasurement, OnlineCorrection
from ..cost import CostModel
from ..errors import InvalidInputError
from ..expert_union import expert_union
from ..files import Trace
from ..policies import Choice, CycleState, Outcome, Policy
from ..profiles import PolicyTime, time_of
from ..routing_predictor import RoutingPredictor
from ..solution import node_time_at
from .overlap import Overlap
from .recorded_drafter import RecordedTree
from .recorded_view import RecordedView
from .true_routing import TrueRouting


@dataclass(frozen=True)
class SimulatedMachine:
    """What things take in a replay, and how large the cache is.

    Attributes
    ----------
    cost_model : CostModel
        Of a pass without drafting; ``expert_time`` per layer.
    draft_time : float
        Seconds per drafted level.
    slots : int
        Experts of each layer that the cache holds.
    cache_policy : str
        What it evicts, by name.
    all_resident : bool
        Every expert is in fast memory from the start; there are as many slots then.
    jitter : float
        Relative scatter of the time of a pass, exponentially distributed around its mean.
    prediction_time : float
        Seconds of predicting the routing of a level, or of the root.
    policy_time : mapping of str to PolicyTime
        See :func:`specfit_opt.profiles.time_of`; empty: what policies do is free.
    overlap : Overlap or None
        What is fetched early within a pass; None: transfer and compute take turns.
    """

    cost_model: CostModel
    draft_time: float
    slots: int
    cache_policy: str = DEFAULT_CACHE_RULE
    all_resident: bool = False
    jitter: float = 0.0
    prediction_time: float = 0.0
    policy_time: Mapping[str, PolicyTime] = field(default_factory=dict)
    overlap: Overlap | None = None


@dataclass(frozen=True, eq=False)
class ReplayedCycle:
    """One pass over a recorded position.

    Attributes
    ----------
    choice : Choice
    levels : int
        Levels drafted.
    committed : int
        Tokens committed.
    predicted_tokens, expected_tokens : float
        What the drafter's path probabilities promised of the choice, and the calibrated ones; both
        the drafter's for a fixed policy.
    used : int
        Experts used, summed over the layers.
    misses : ndarray of int64, shape (L,)
    waits : ndarray of float64, shape (L,)
        Seconds that each layer waited for them.
    wasted : ndarray of float64, shape (L,)
        Experts that were fetched early and not used: a mean, not a count.
    compute_seconds, draft_seconds, transfer_seconds : float
    hidden_seconds : float
        Transfer behind compute, a part of ``compute_seconds``.
    search_seconds, prediction_seconds, learning_seconds : float
        What the policy does on the host: for each drafted level, for each prediction of routing,
        and in every cycle.
    """

    choice: Choice
    levels: int
    committed: int
    predicted_tokens: float
    expected_tokens: float
    used: int
    misses: NDArray[np.int64]
    waits: NDArray[np.float64]
    wasted: NDArray[np.float64]
    compute_seconds: float
    draft_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    search_seconds: float
    prediction_seconds: float
    learning_seconds: float

    @property
    def seconds(self) -> float:
        """The whole cycle."""
        machine = self.compute_seconds + self.draft_seconds + self.transfer_seconds
        return machine + self.search_seconds + self.prediction_seconds + self.learning_seconds


class RecordedDecode:
    """A policy that decodes recorded texts one after the other.

    Acceptance, routing and costs are learned by the classes that a live decode uses, and kept from
    one text to the next. Only the drafter, the target and the clock are the recording's.

    Parameters
    ----------
    trace : Trace
    policy : Policy
        Is asked for a fresh one.
    machine : SimulatedMachine
    predictor : RoutingPredictor, optional
        What the policy knows of the routing; None: the truth.
    warmup : int
        Positions at the start of a text that stand for its prompt: they are run one by one, warm
        the cache and teach the predictor. The policy sees them as plain passes; they are not
        counted.
    seed : int
        Of the jitter.
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        machine: SimulatedMachine,
        predictor: RoutingPredictor | None = None,
        *,
        warmup: int = 12,
        seed: int = 0,
    ) -> None:
        self.policy = policy.fresh()
        self.predictor = TrueRouting() if predictor is None else predictor
        self.calibrator = AcceptanceCalibrator()
        self.correction = OnlineCorrection(machine.cost_model, [machine.draft_time])
        self._warmup = warmup
        self._rng = np.random.default_rng(seed)
        self.take(trace, machine)

    def take(self, trace: Trace, machine: SimulatedMachine) -> None:
        """Go on with the texts of another trace of the same model, keeping what was learned."""
        self.trace = trace
        self.machine = machine
        self._rule = CACHE_RULES.find(machine.cache_policy)
        self._slots = np.full(trace.n_layers, machine.slots, dtype=np.int64)
        self._shape = trace.n_layers, trace.n_experts, trace.experts.shape[2]
        self._time = time_of(self.policy, machine.policy_time)

    def text(
        self,
        first: int,
        end: int,
        *,
        trees: RecordedTrees | None = None,
        watch: Callable[[RecordedView, Outcome], None] | None = None,
    ) -> list[ReplayedCycle]:
        """Decode the recorded positions from ``first`` to before ``end``, one text.

        Parameters
        ----------
        first, end : int
            As in :attr:`specfit_opt.files.Trace.prompts`.
        trees : RecordedTrees, optional
            Of the trace, when other decodes use them too.
        watch : callable, optional
            Called with the view and the outcome of every counted cycle.

        Returns
        -------
        list of ReplayedCycle
            A pass that reaches past the end counts whole.

        Raises
        ------
        InvalidInputError
            If the policy verifies more nodes than the cost model allows.
        """
        self._trees = RecordedTrees(self.trace) if trees is None else trees
        shape = self._shape[:2]
        self._cache = SimulatedCache(self._rule, self._slots, *shape)
        if self.machine.all_resident:
            self._cache.take_over(np.ones(shape, dtype=np.bool_))
        self._tokens, self._seconds = 0, 0.0
        start = min(first + self._warmup, end)
        if self._rule.clairvoyant:
            self._cache.foresee(self._rehearse(first, start, end))
        self.predictor.start(*self._shape)
        self.policy.start()
        cycles = []
        at = first
        while at < end:
            if at < start:
                cycle = self._cycle(at, 0, None)
            else:
                cycle = self._cycle(at, None, watch)
                cycles.append(cycle)
            at += cycle.committed
        return cycles

    def _rehearse(self, first: int, start: int, end: int) -> list[NDArray[np.bool_]]:
        """Return what each pass will use; the policy is a fixed one."""
        passes = []
        at = first
        while at < end:
            chosen = self._chosen(at, 0 if at < start else None)
            passes.append(chosen.used)
            at += chosen.committed
        return passes

    def _chosen(self, at: int, limit: int | None) -> _Chosen:
        """Return what the policy chooses at a position; of a fixed one, what it chose before."""
        if not self.policy.fixed:
            return self._choose(at, limit)
        known = self._trees[at].fixed
        chosen: _Chosen | None = known.get((self.policy, limit))
        if chosen is None:
            chosen = known[self.policy, limit] = self._choose(at, limit)
        return chosen

    def _choose(self, at: int, limit: int | None) -> _Chosen:
        view = self._view(at, limit)
        choice = self.policy.choose(view)
        return _Chosen(
            view,
            choice,
            used=expert_union(view.true_experts[choice.nodes], self.trace.n_experts),
            committed=int(np.count_nonzero(view.accepted[choice.nodes])),
        )

    def _view(self, at: int, limit: int | None) -> RecordedView:
        priced = self.policy.priced
        state = CycleState(
            cost_model=self.correction.cost_model() if priced else None,
            level_time=self.correction.level_time if priced else None,
            resident=self._cache.resident.copy(),
            slots=self._slots,
            cache_policy=self.machine.cache_policy,
            rate=self._tokens / self._seconds if self._tokens else None,
            load_time=self.correction.load_time if priced else None,
        )
        draft_time = self.machine.draft_time
        return RecordedView(
            self._trees[at], self.predictor, self.calibrator, state, draft_time, limit
        )

    def _cycle(
        self, at: int, limit: int | None, watch: Callable[[RecordedView, Outcome], None] | None
    ) -> ReplayedCycle:
        chosen = self._chosen(at, limit)
        view, choice = chosen.view, chosen.choice
        resident = view.resident
        cycle = self._run(chosen)
        outcome = self._outcome(view, choice, cycle)
        self._learn(view, outcome, cycle, resident)
        if watch is not None:
            watch(view, outcome)
        self._tokens += cycle.committed
        self._seconds += cycle.seconds
        return cycle

    def _run(self, chosen: _Chosen) -> ReplayedCycle:
        """Verify what was chosen: load, and charge."""
        machine, view, nodes = self.machine, chosen.view, chosen.choice.nodes
        cost = machine.cost_model
        node_time = node_time_at(cost, len(nodes))
        if not math.isfinite(node_time):
            raise InvalidInputError(
                f"policy {self.policy.name} verifies {len(nodes)} nodes, which the machine's "
                "node_time forbids"
            )
        misses = np.count_nonzero(self._cache.use(chosen.used), axis=1)
        self._cache.committed(chosen.committed)
        n_used = int(np.count_nonzero(chosen.used))
        predicted = float(view.drafter_path_prob[nodes].sum())
        hits = n_used - int(misses.sum())
        # A drafter would have given the levels that a recording lacks below an unlikely node.
        levels = max(view.levels, min(self.policy.needs_levels, view.max_levels))
        noise = 1.0
        if machine.jitter:
            noise += machine.jitter * float(self._rng.standard_exponential() - 1.0)
        compute = (cost.fixed_time + node_time) * noise
        time = _layer_time(cost)
        waits, wasted = misses * time, np.zeros(len(time))
        hidden_seconds = 0.0
        if machine.overlap is not None:
            hidden = machine.overlap.hidden(waits, compute)
            waits, hidden_seconds = waits - hidden, float(hidden.sum())
            wasted = machine.overlap.wasted(hidden) / np.where(time > 0.0, time, 1.0)
        return ReplayedCycle(
            choice=chosen.choice,
            levels=levels,
            committed=chosen.committed,
            predicted_tokens=predicted,
            # Fixed policies do not look at calibrated probabilities, so none are learned for them.
            expected_tokens=(
                predicted if self.policy.fixed else float(view.path_prob[nodes].sum())
            ),
            used=n_used,
            misses=misses,
            waits=waits,
            wasted=wasted,
            compute_seconds=compute,
            draft_seconds=machine.draft_time * levels,
            transfer_seconds=float(waits.sum()) + hits * cost.resident_time,
            hidden_seconds=hidden_seconds,
            search_seconds=self._time.level * view.levels,
            prediction_seconds=machine.prediction_time * view.predictions,
            learning_seconds=self._time.cycle,
        )

    def _outcome(self, view: RecordedView, choice: Choice, cycle: ReplayedCycle) -> Outcome:
        return Outcome(
            choice=choice,
            levels=view.levels,
            accepted=choice.nodes[view.accepted[choice.nodes]],
            committed=cycle.committed,
            experts=view.true_experts[choice.nodes],
            misses=cycle.misses,
            seconds=cycle.seconds,
            transfer_seconds=cycle.transfer_seconds,
        )

    def _learn(
        self,
        view: RecordedView,
        outcome: Outcome,
        cycle: ReplayedCycle,
        resident: NDArray[np.bool_],
    ) -> None:
        """Teach what a live decode teaches, and the policy last."""
        policy, accepted, nodes = self.policy, outcome.accepted, outcome.choice.nodes
        if view.levels and not policy.fixed:
            # Nodes stand for tokens: recorded tokens of siblings need not differ.
            ids = np.arange(len(view.parent))
            followers = _followers(view, accepted)
            self.calibrator.observe(view.parent, ids, view.prob, accepted, followers)
        if policy.predicts:
            self.predictor.observe(view.token[accepted], view.true_experts[accepted])
        if policy.priced:
            predicted = cycle.misses
            if view.predicted:
                wanted = expert_union(view.experts()[nodes], self.trace.n_experts)
                predicted = np.count_nonzero(wanted & ~resident, axis=1)
            self.correction.update(
                CycleMeasurement(
                    n_nodes=len(nodes),
                    predicted_misses=predicted,
                    realised_misses=cycle.misses,
                    compute_seconds=cycle.compute_seconds,
                    wait_seconds=float(cycle.waits.sum()),
                    draft_seconds=tuple(view.level_seconds[: view.levels]),
                    hidden_seconds=cycle.hidden_seconds,
                    # Live, one clock runs while a policy chooses, predictions included.
                    search_seconds=cycle.search_seconds + cycle.prediction_seconds,
                    other_seconds=cycle.learning_seconds,
                )
            )
        policy.observe(outcome)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A choice, the view that it was made from, and what it uses and commits."""

    view: RecordedView
    choice: Choice
    used: NDArray[np.bool_]
    committed: int


class RecordedTrees(dict[int, RecordedTree]):
    """The trees of a trace by position, made at their first use."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __missing__(self, at: int) -> RecordedTree:
        tree = self[at] = RecordedTree(self._trace.cycle(at))
        return tree


def _layer_time(cost: CostModel) -> NDArray[np.float64]:
    time = cost.expert_time
    assert not isinstance(time, float)  # OnlineCorrection has refused that
    return time if time.ndim == 1 else time.mean(axis=1)


def _followers(view: RecordedView, accepted: NDArray[np.int64]) -> Sequence[int]:
    """Return, for each accepted node, its accepted child in the drafted tree; -1 for none."""
    on_path = np.flatnonzero(view.accepted)
    child = {int(view.parent[node]): int(node) for node in on_path}
    return [child.get(int(node), -1) for node in accepted]
