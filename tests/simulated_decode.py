"""Decoding of a recorded trace on a machine that is only simulated, for tests of policies.

The trace says what the drafter drafts, what the target accepts and how it routes; the machine has
an LRU cache and a clock. Everything a real decode learns, acceptance, routing and costs, is learned
here by the same classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.files import Trace
from specfit_opt.solution import node_time_at
from specfit_runtime.acceptance import AcceptanceCalibrator
from specfit_runtime.calibration.correction import CycleMeasurement, OnlineCorrection
from specfit_runtime.policies.registry import DraftView, Outcome, Policy
from specfit_runtime.predictors import DraftNodes, RoutingPredictor, make_predictor


@dataclass(frozen=True)
class Machine:
    """What things take, in seconds, and how many experts of a layer the cache holds."""

    slots: int
    expert_time: float
    fixed_time: float = 1.0
    node_time: float = 0.02
    level_time: float = 0.05

    def cost_model(self, n_layers: int) -> CostModel:
        table = np.concatenate([[0.0], self.fixed_time + self.node_time * np.arange(1, 129)])
        return CostModel(0.0, table, np.full(n_layers, self.expert_time))


class LruCache:
    """One least-recently-used cache per layer; a pass that does not fit leaves residents alone."""

    def __init__(self, n_layers: int, n_experts: int, slots: int) -> None:
        self.slots = slots
        self.resident = np.zeros((n_layers, n_experts), dtype=np.bool_)
        self.stamp = np.full((n_layers, n_experts), -1, dtype=np.int64)
        self.clock = 0

    def use(self, used: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Run a pass and return what each layer missed."""
        self.clock += 1
        missed = used & ~self.resident
        self.stamp[used] = self.clock
        for layer in np.flatnonzero(missed.any(axis=1)):
            new = np.flatnonzero(missed[layer])
            free = self.slots - int(self.resident[layer].sum())
            if int(used[layer].sum()) > self.slots:
                self.resident[layer, new[:free]] = True
                continue
            self.resident[layer, new] = True
            over = int(self.resident[layer].sum()) - self.slots
            if over > 0:
                old = np.flatnonzero(self.resident[layer])
                order = np.argsort(self.stamp[layer, old], kind="stable")
                self.resident[layer, old[order[:over]]] = False
        return missed.sum(axis=1)


class TraceView(DraftView):
    """A cycle whose levels are those of a recorded pool."""

    def __init__(self, run: SimulatedDecode, cycle: int) -> None:
        self._run = run
        found = run.trace.cycle(cycle)
        self._recorded = found
        parent = found.tree.parent.astype(np.int64)
        path = np.asarray(found.tree.path_prob)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._prob_of = np.where(parent < 0, 1.0, path / path[parent])
        self._parent_of = parent
        self._expands = np.zeros(len(parent), dtype=np.bool_)
        self._expands[parent[parent >= 0]] = True
        self._nodes = np.zeros(1, dtype=np.int64)  # recorded id of each node of the view
        self._parent = np.full(1, -1, dtype=np.int64)
        self._path_prob = np.ones(1)
        self._depth = np.zeros(1, dtype=np.int64)
        self._frontier = np.zeros(1, dtype=np.int64)
        self._levels = 0
        self._experts: NDArray[np.int32] | None = None
        self.draft_seconds: list[float] = []

    @property
    def parent(self) -> NDArray[np.int64]:
        return self._parent

    @property
    def token(self) -> NDArray[np.int64]:
        return self._recorded.token[self._nodes].astype(np.int64)

    @property
    def prob(self) -> NDArray[np.float64]:
        return self._prob_of[self._nodes]

    @property
    def path_prob(self) -> NDArray[np.float64]:
        return self._path_prob

    @property
    def depth(self) -> NDArray[np.int64]:
        return self._depth

    @property
    def levels(self) -> int:
        return self._levels

    @property
    def max_levels(self) -> int | None:
        return min(self._run.trace.max_depth, self._run.positions_left)

    @property
    def frontier(self) -> NDArray[np.int64]:
        return self._frontier

    @property
    def cost_model(self) -> CostModel:
        return self._run.correction.cost_model()

    @property
    def resident(self) -> NDArray[np.bool_]:
        return self._run.cache.resident

    @property
    def slots(self) -> NDArray[np.int64]:
        return np.full(self._run.trace.n_layers, self._run.machine.slots)

    @property
    def level_time(self) -> float:
        return self._run.correction.level_time(self._levels + 1)

    @property
    def draft_time(self) -> float:
        return sum(self.draft_seconds)

    @property
    def rate(self) -> float | None:
        run = self._run
        return run.tokens / run.seconds if run.tokens else None

    @property
    def acceptance(self) -> Sequence[float]:
        return self._run.calibrator.acceptance

    @property
    def true_experts(self) -> NDArray[np.integer]:
        """True routing of the nodes."""
        return self._recorded.experts[self._nodes]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each node is on the greedy path."""
        return self._recorded.accepted[self._nodes]

    @property
    def predicted(self) -> bool:
        return self._experts is not None

    def experts(self, first: int = 0) -> NDArray[np.int32]:
        if self._run.predictor is None:
            self._experts = self.true_experts.astype(np.int32)
            return self._experts[first:]
        known = 0 if self._experts is None else len(self._experts)
        if known < len(self._nodes):
            asked = DraftNodes(self.token[known:], self.parent[known:], self.depth[known:])
            found = self._run.predictor.predict(asked)
            self._experts = (
                found if self._experts is None else np.concatenate([self._experts, found])
            )
        assert self._experts is not None
        return self._experts[first:]

    def grow(self, top_k: int, width: int) -> bool:
        if self.max_levels is not None and self._levels >= self.max_levels:
            return False
        rows, parents = [], []
        for node in self._frontier.tolist():
            children = np.flatnonzero(self._parent_of == self._nodes[node])
            best = children[np.argsort(-self._prob_of[children], kind="stable")[:top_k]]
            rows += np.sort(best).tolist()
            parents += [node] * len(best)
        if not rows:
            return False
        self.draft_seconds.append(self._run.machine.level_time)
        first = len(self._nodes)
        new = np.array(rows, dtype=np.int64)
        parent = np.array(parents, dtype=np.int64)
        self._levels += 1
        path = self._run.calibrator.path_prob(
            parent, self._prob_of[new], self._path_prob, self._levels
        )
        self._nodes = np.concatenate([self._nodes, new])
        self._parent = np.concatenate([self._parent, parent])
        self._path_prob = np.concatenate([self._path_prob, path])
        self._depth = np.concatenate([self._depth, np.full(len(new), self._levels)])
        # The drafter expands by its own probabilities, among those that the recording expanded.
        drafted = self._recorded.tree.path_prob[new]
        order = [i for i in np.argsort(-drafted, kind="stable") if self._expands[new[i]]]
        self._frontier = np.array(order[:width], dtype=np.int64) + first
        return True


@dataclass
class Text:
    """What decoding one text came to."""

    tokens: int = 0
    cycles: int = 0
    drafted_cycles: int = 0
    levels: int = 0
    nodes: int = 0
    misses: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class SimulatedDecode:
    """Texts of a trace under one policy on one machine.

    The first ``prompt`` positions of a text stand for its prompt: they are not decoded, but warm
    the cache and teach the predictor. ``predictor`` None stands for true routing. ``jitter`` is the
    relative noise of the time of a pass. ``watch`` is called with every view and outcome.
    """

    trace: Trace
    policy: Policy
    machine: Machine
    predictor: RoutingPredictor | None = field(default_factory=lambda: make_predictor("frequency"))
    prompt: int = 12
    watch: Callable[[TraceView, Outcome], None] | None = None
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        trace, machine = self.trace, self.machine
        self.policy = self.policy.fresh()
        self.cache = LruCache(trace.n_layers, trace.n_experts, machine.slots)
        self.calibrator = AcceptanceCalibrator()
        base = machine.cost_model(trace.n_layers)
        self.correction = OnlineCorrection(base, [machine.level_time])
        self.rng = np.random.default_rng(self.seed)
        self.tokens = 0
        self.seconds = 0.0
        self.positions_left = 0

    def run(self) -> list[Text]:
        texts = []
        for first, end in self.trace.prompts:
            at = first + self.prompt
            self._begin(first, at)
            text = Text()
            while at < end:
                # A draft deeper than what is left of the recording cannot be judged.
                self.positions_left = end - at - 1
                at += self._cycle(at, text)
            texts.append(text)
        return texts

    def _begin(self, first: int, end: int) -> None:
        trace = self.trace
        self.tokens, self.seconds = 0, 0.0
        self.policy.start()
        roots = trace.cycle_start[first:end]
        for root in roots:
            self.cache.use(_union(trace.experts[root : root + 1], trace.n_experts))
        if self.predictor is not None:
            self.predictor.start(trace.n_layers, trace.n_experts, trace.experts.shape[2])
            self.predictor.observe(trace.token[roots], trace.experts[roots])

    def _cycle(self, at: int, text: Text) -> int:
        trace, machine = self.trace, self.machine
        view = TraceView(self, at)
        choice = self.policy.choose(view)
        nodes = choice.nodes
        resident = self.cache.resident.copy()
        true = view.true_experts[nodes]
        used = _union(true, trace.n_experts)
        misses = self.cache.use(used)
        predicted = misses
        if view.predicted:
            predicted = (_union(view.experts()[nodes], trace.n_experts) & ~resident).sum(axis=1)
        base = machine.cost_model(trace.n_layers)
        noise = 1.0 + self.jitter * float(self.rng.standard_exponential() - 1.0)
        compute = (base.fixed_time + node_time_at(base, len(nodes))) * noise
        waited = float(misses.sum()) * machine.expert_time
        drafting = view.draft_time
        accepted = nodes[view.accepted[nodes]]
        committed = len(accepted)
        if self.predictor is not None:
            order = np.flatnonzero(view.accepted[nodes])
            self.predictor.observe(view.token[accepted], true[order])
        if view.levels:
            self._teach(view, accepted, at)
        if view.predicted or not view.levels:
            self.correction.update(
                CycleMeasurement(
                    n_nodes=len(nodes),
                    predicted_misses=predicted,
                    realised_misses=misses,
                    compute_seconds=compute,
                    wait_seconds=waited,
                    draft_seconds=tuple(view.draft_seconds),
                )
            )
        seconds = compute + waited + drafting
        outcome = Outcome(
            choice=choice,
            levels=view.levels,
            accepted=accepted,
            committed=committed,
            experts=true,
            misses=misses,
            seconds=seconds,
            draft_seconds=drafting,
            verify_seconds=compute,
            transfer_seconds=waited,
        )
        self.policy.observe(outcome)
        if self.watch is not None:
            self.watch(view, outcome)
        self.tokens += committed
        self.seconds += seconds
        text.tokens += committed
        text.cycles += 1
        text.drafted_cycles += view.levels > 0
        text.levels += view.levels
        text.nodes += len(nodes)
        text.misses += int(misses.sum())
        text.seconds += seconds
        return committed

    def _teach(self, view: TraceView, accepted: NDArray[np.int64], at: int) -> None:
        """Tell the calibrator what followed each accepted node: the roots of the next cycles."""
        trace = self.trace
        following = [
            int(trace.token[trace.cycle_start[at + i + 1]]) for i in range(len(accepted))
            if at + i + 1 < trace.n_cycles and trace.prompt[at + i + 1] == trace.prompt[at]
        ]
        self.calibrator.observe(
            view.parent, view.token, view.prob, accepted.tolist(), following
        )


def _union(experts: NDArray[np.integer], n_experts: int) -> NDArray[np.bool_]:
    n_layers = experts.shape[1]
    used = np.zeros((n_layers, n_experts + 1), dtype=np.bool_)
    used[np.arange(n_layers)[None, :, None], experts] = True
    return used[:, :n_experts]
