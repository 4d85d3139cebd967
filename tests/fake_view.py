"""A draft view whose levels are given beforehand, for tests of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.policies import CycleState, DraftLevel, DraftView
from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor


class _Levels:
    """A drafter of given levels: ``(parent, probability)`` for each node."""

    def __init__(
        self, levels: Sequence[Sequence[tuple[int, float]]], max_levels: int | None
    ) -> None:
        self._levels = [list(level) for level in levels]
        self.max_levels = max_levels
        self.begin()

    def root_state(self) -> None:
        return None

    def begin(self) -> None:
        self._drafted = 0
        self._path = [1.0]
        self._frontier = [0]

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        if self._drafted == len(self._levels):
            return None
        first = len(self._path)
        kept: list[tuple[int, float]] = []
        for parent, prob in self._levels[self._drafted]:
            siblings = sum(1 for other, _ in kept if other == parent)
            if parent in self._frontier and siblings < top_k:
                kept.append((parent, prob))
        if not kept:
            return None
        self._drafted += 1
        self._path += [self._path[parent] * prob for parent, prob in kept]
        new = range(first, len(self._path))
        self._frontier = sorted(new, key=lambda v: (-self._path[v], v))[:width]
        return DraftLevel(
            np.array([parent for parent, _ in kept], dtype=np.int64),
            np.array(new, dtype=np.int64) + 100,
            np.array([prob for _, prob in kept]),
            np.array(self._frontier, dtype=np.int64),
        )


class _Known(RoutingPredictor):
    """Predicts given experts, in the order of the nodes."""

    name = "known"

    def __init__(self, experts: NDArray[np.int32]) -> None:
        self._experts = experts
        self._next = 0

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        raise NotImplementedError

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        first, self._next = self._next, self._next + len(nodes.parent)
        return self._experts[first : self._next]

    def observe(self, tokens: Any, experts: Any) -> None:
        raise NotImplementedError


class _Trusting:
    """Acceptance as the drafter says, and a given one of any child."""

    def __init__(self, acceptance: Sequence[float]) -> None:
        self.acceptance = acceptance

    def path_prob(
        self, parent: NDArray[Any], prob: NDArray[Any], above: NDArray[Any], depth: int
    ) -> NDArray[np.float64]:
        return above[parent] * prob


class FakeView(DraftView):
    """A drafter's levels, predicted routing and prices, all fixed.

    Children of a node are given with their conditional probabilities; ``path_prob`` is their
    product. ``calls`` counts what was asked.
    """

    def __init__(
        self,
        levels: Sequence[Sequence[tuple[int, float]]] = (),
        *,
        n_layers: int = 2,
        n_experts: int = 6,
        top_k: int = 2,
        seed: int = 0,
        cost_model: CostModel | None = None,
        resident: NDArray[np.bool_] | None = None,
        level_time: float = 0.05,
        rate: float | None = None,
        acceptance: Sequence[float] = (0.5, 0.5),
        max_levels: int | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        n = 1 + sum(len(level) for level in levels)
        experts = np.argsort(rng.random((n, n_layers, n_experts)), axis=2)[..., :top_k]
        self.all_experts = experts.astype(np.int32)
        cost = cost_model or CostModel(
            0.0, np.concatenate([[0.0], 1.0 + 0.02 * np.arange(1, 200)]), np.full(n_layers, 0.1)
        )
        if resident is None:
            resident = np.zeros((n_layers, n_experts), dtype=np.bool_)
        there = resident.view()
        there.flags.writeable = False
        self._fixed_level_time = level_time
        self.calls = {"grow": 0, "experts": 0, "prices": 0}
        super().__init__(
            100,
            _Levels(levels, max_levels),
            _Known(self.all_experts),
            _Trusting(acceptance),  # type: ignore[arg-type]
            CycleState(
                cost_model=cost,
                level_time=lambda level: level_time,
                resident=there,
                slots=np.full(n_layers, n_experts, dtype=np.int64),
                cache_policy="lru",
                rate=rate,
            ),
            max_levels=1000 if max_levels is None else max_levels,
        )

    @property
    def cost_model(self) -> CostModel:
        self.calls["prices"] += 1
        return super().cost_model

    @property
    def level_time(self) -> float:
        self.calls["prices"] += 1
        return super().level_time

    def experts(self, first: int = 0) -> NDArray[np.int32]:
        self.calls["experts"] += 1
        return super().experts(first)

    def grow(self, top_k: int, width: int) -> bool:
        self.calls["grow"] += 1
        return super().grow(top_k, width)

    def _seconds_of_level(self, measured: float, level: DraftLevel | None) -> float:
        return 0.0 if level is None else self._fixed_level_time


def random_view(seed: int, *, depth: int = 3, children: int = 3, **options: object) -> FakeView:
    """Return a view of random shape: up to ``depth`` levels, up to ``children`` per node."""
    rng = np.random.default_rng(seed)
    levels: list[list[tuple[int, float]]] = []
    last, n = [0], 1
    for _ in range(int(rng.integers(0, depth + 1))):
        level: list[tuple[int, float]] = []
        for node in last:
            count = int(rng.integers(0, children + 1))
            share = np.sort(rng.dirichlet(np.full(count + 1, 0.5)))[::-1][:count]
            level += [(node, float(p)) for p in share]
        if not level:
            break
        levels.append(level)
        last = list(range(n, n + len(level)))
        n += len(level)
    n_layers, n_experts = 2, 6
    options.setdefault("resident", rng.random((n_layers, n_experts)) < 0.3)
    return FakeView(levels, seed=seed, **options)  # type: ignore[arg-type]
