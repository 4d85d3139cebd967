"""Decoding of recorded texts on a machine that is only simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.files import Trace
from specfit_opt.path_weights import PathWeights
from specfit_opt.replay.caches import get_cache
from specfit_opt.routing_predictor import RoutingPredictor
from specfit_opt.solution import node_time_at

from ..acceptance import AcceptanceCalibrator
from ..calibration import CycleMeasurement, OnlineCorrection
from ..decode.view import Prices
from ..expert_union import expert_union
from ..policies import Choice, Outcome, Policy
from .recorded_view import RecordedView


@dataclass(frozen=True)
class Machine:
    """What things take on the simulated machine, and how large its cache is.

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
    jitter : float
        Relative scatter of the time of a pass, exponentially distributed around its mean.
    """

    cost_model: CostModel
    draft_time: float
    slots: int
    cache_policy: str = "lru"
    jitter: float = 0.0


@dataclass(frozen=True, eq=False)
class SimulatedCycle:
    """One pass over a simulated position.

    Attributes
    ----------
    choice : Choice
    levels : int
        Levels drafted.
    committed : int
        Tokens committed.
    expected_tokens : float
        What the calibrated path probabilities said.
    used : int
        Experts used, summed over the layers.
    misses : ndarray of int64, shape (L,)
    compute_seconds, draft_seconds, transfer_seconds : float
    """

    choice: Choice
    levels: int
    committed: int
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


class SimulatedDecode:
    """A policy that decodes recorded texts one after the other, and learns as it would live.

    Acceptance, routing and costs are learned by the classes that a live decode uses, and kept from
    one text to the next.

    Parameters
    ----------
    trace : Trace
    policy : Policy
        Is asked for a fresh one.
    machine : Machine
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator, optional
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
        machine: Machine,
        predictor: RoutingPredictor,
        *,
        calibrator: AcceptanceCalibrator | None = None,
        warmup: int = 12,
        seed: int = 0,
    ) -> None:
        self.policy = policy.fresh()
        self.predictor = predictor
        self.calibrator = AcceptanceCalibrator() if calibrator is None else calibrator
        self.correction = OnlineCorrection(machine.cost_model, [machine.draft_time])
        self._warmup = warmup
        self._rng = np.random.default_rng(seed)
        self.take(trace, machine)

    def take(self, trace: Trace, machine: Machine) -> None:
        """Go on with the texts of another trace of the same model, keeping what was learned."""
        self.trace = trace
        self.machine = machine
        self._kind = get_cache(machine.cache_policy)
        self._slots = np.full(trace.n_layers, machine.slots, dtype=np.int64)
        self._shape = trace.n_layers, trace.n_experts, trace.experts.shape[2]

    def text(
        self, first: int, end: int, watch: Callable[[RecordedView, Outcome], None] | None = None
    ) -> list[SimulatedCycle]:
        """Decode the recorded positions from ``first`` to before ``end``, one text.

        Parameters
        ----------
        first, end : int
            As in :attr:`specfit_opt.files.Trace.prompts`.
        watch : callable, optional
            Called with the view and the outcome of every cycle.

        Returns
        -------
        list of SimulatedCycle
            A pass that reaches past the end counts whole.
        """
        self._cache = self._kind.make(*self._shape[:2], self.machine.slots)
        self._tokens, self._seconds = 0, 0.0
        self.predictor.start(*self._shape)
        self.policy.start()
        cycles = []
        at, start = first, min(first + self._warmup, end)
        while at < end:
            cycle = self._cycle(at, 0 if at < start else None, watch)
            if at >= start:
                cycles.append(cycle)
            at += cycle.committed
        return cycles

    def _cycle(
        self, at: int, limit: int | None, watch: Callable[[RecordedView, Outcome], None] | None
    ) -> SimulatedCycle:
        trace, machine = self.trace, self.machine
        resident = self._cache.resident
        prices = Prices(
            cost_model=self.correction.cost_model(),
            level_time=self.correction.level_time,
            resident=resident,
            slots=self._slots,
            cache_policy=machine.cache_policy,
            rate=self._tokens / self._seconds if self._tokens else None,
        )
        view = RecordedView(
            trace.cycle(at), self.predictor, self.calibrator, prices, machine.draft_time, limit
        )
        choice = self.policy.choose(view)
        nodes = choice.nodes
        true = view.true_experts[nodes]
        used = expert_union(true, trace.n_experts)
        weight = _weights(view, nodes, true, trace.n_experts) if self._kind.weighs else None
        misses = np.count_nonzero(self._cache.use(used, weight), axis=1)
        predicted = misses
        if view.predicted:
            wanted = expert_union(view.experts()[nodes], trace.n_experts)
            predicted = np.count_nonzero(wanted & ~resident, axis=1)
        noise = 1.0 + machine.jitter * float(self._rng.standard_exponential() - 1.0)
        cost = machine.cost_model
        compute = (cost.fixed_time + node_time_at(cost, len(nodes))) * noise
        hits = int(np.count_nonzero(used)) - int(misses.sum())
        transfer = float(misses @ _layer_time(cost)) + hits * cost.resident_time
        accepted = nodes[view.accepted[nodes]]
        self._cache.committed(len(accepted))
        if view.levels:
            # Nodes stand for tokens: recorded tokens of siblings need not differ.
            ids = np.arange(len(view.parent))
            self.calibrator.observe(
                view.parent, ids, view.prob, accepted, _followers(view, accepted)
            )
        self.predictor.observe(view.token[accepted], view.true_experts[accepted])
        self.correction.update(
            CycleMeasurement(
                n_nodes=len(nodes),
                predicted_misses=predicted,
                realised_misses=misses,
                compute_seconds=compute,
                wait_seconds=transfer,
                draft_seconds=tuple(view.level_seconds),
            )
        )
        cycle = SimulatedCycle(
            choice=choice,
            levels=view.levels,
            committed=len(accepted),
            expected_tokens=float(view.path_prob[nodes].sum()),
            used=int(np.count_nonzero(used)),
            misses=misses,
            compute_seconds=compute,
            draft_seconds=view.draft_time,
            transfer_seconds=transfer,
        )
        outcome = Outcome(
            choice=choice,
            levels=view.levels,
            accepted=accepted,
            committed=len(accepted),
            experts=true,
            misses=misses,
            seconds=cycle.seconds,
            draft_seconds=cycle.draft_seconds,
            verify_seconds=compute,
            transfer_seconds=transfer,
        )
        self.policy.observe(outcome)
        if watch is not None:
            watch(view, outcome)
        self._tokens += cycle.committed
        self._seconds += cycle.seconds
        return cycle


def _layer_time(cost: CostModel) -> NDArray[np.float64]:
    time = cost.expert_time
    assert not isinstance(time, float)  # OnlineCorrection has refused that
    return time if time.ndim == 1 else time.mean(axis=1)


def _weights(
    view: RecordedView, nodes: NDArray[np.int64], experts: NDArray[np.integer], n_experts: int
) -> NDArray[np.float64]:
    """Return how likely the committed tokens are to use each expert, shape (L, E)."""
    number = np.full(len(view.parent) + 1, -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    # The root's parent, -1, is the entry behind the last.
    return PathWeights(number[view.parent[nodes]], view.path_prob[nodes]).of(experts, n_experts)


def _followers(view: RecordedView, accepted: NDArray[np.int64]) -> Sequence[int]:
    """Return, for each accepted node, its accepted child in the drafted tree; -1 for none."""
    on_path = np.flatnonzero(view.accepted)
    child = {int(view.parent[node]): int(node) for node in on_path}
    return [child.get(int(node), -1) for node in accepted]
