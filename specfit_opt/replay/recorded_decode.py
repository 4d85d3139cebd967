"""The engine of a replay: a policy decodes recorded texts, and learns as it would live."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from ..routing_predictor import RoutingPredictor
from ..solution import node_time_at
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
    """

    cost_model: CostModel
    draft_time: float
    slots: int
    cache_policy: str = DEFAULT_CACHE_RULE
    all_resident: bool = False
    jitter: float = 0.0


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
    compute_seconds, draft_seconds, transfer_seconds : float
    """

    choice: Choice
    levels: int
    committed: int
    predicted_tokens: float
    expected_tokens: float
    used: int
    misses: NDArray[np.int64]
    compute_seconds: float
    draft_seconds: float
    transfer_seconds: float

    @property
    def seconds(self) -> float:
        """The whole cycle."""
        return self.compute_seconds + self.draft_seconds + self.transfer_seconds


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
            view = self._view(at, 0 if at < start else None)
            nodes = self.policy.choose(view).nodes
            passes.append(expert_union(view.true_experts[nodes], self.trace.n_experts))
            at += int(np.count_nonzero(view.accepted[nodes]))
        return passes

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
        view = self._view(at, limit)
        resident = view.resident
        choice = self.policy.choose(view)
        cycle = self._run(view, choice)
        outcome = self._outcome(view, choice, cycle)
        self._learn(view, outcome, cycle, resident)
        if watch is not None:
            watch(view, outcome)
        self._tokens += cycle.committed
        self._seconds += cycle.seconds
        return cycle

    def _run(self, view: RecordedView, choice: Choice) -> ReplayedCycle:
        """Verify what was chosen: load, and charge."""
        machine, nodes = self.machine, choice.nodes
        cost = machine.cost_model
        node_time = node_time_at(cost, len(nodes))
        if not math.isfinite(node_time):
            raise InvalidInputError(
                f"policy {self.policy.name} verifies {len(nodes)} nodes, which the machine's "
                "node_time forbids"
            )
        used = expert_union(view.true_experts[nodes], self.trace.n_experts)
        misses = np.count_nonzero(self._cache.use(used), axis=1)
        committed = int(np.count_nonzero(view.accepted[nodes]))
        self._cache.committed(committed)
        n_used = int(np.count_nonzero(used))
        predicted = float(view.drafter_path_prob[nodes].sum())
        hits = n_used - int(misses.sum())
        # A drafter would have given the levels that a recording lacks below an unlikely node.
        levels = max(view.levels, min(self.policy.needs_levels, view.max_levels))
        drafting = view.draft_time + machine.draft_time * (levels - view.levels)
        noise = 1.0
        if machine.jitter:
            noise += machine.jitter * float(self._rng.standard_exponential() - 1.0)
        return ReplayedCycle(
            choice=choice,
            levels=levels,
            committed=committed,
            predicted_tokens=predicted,
            # Fixed policies do not look at calibrated probabilities, so none are learned for them.
            expected_tokens=(
                predicted if self.policy.fixed else float(view.path_prob[nodes].sum())
            ),
            used=n_used,
            misses=misses,
            compute_seconds=(cost.fixed_time + node_time) * noise,
            draft_seconds=drafting,
            transfer_seconds=float(misses @ _layer_time(cost)) + hits * cost.resident_time,
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
                    wait_seconds=float(cycle.misses @ _layer_time(self.machine.cost_model)),
                    draft_seconds=tuple(view.level_seconds[: view.levels]),
                )
            )
        policy.observe(outcome)


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
