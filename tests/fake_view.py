"""A draft view whose levels are given beforehand, for tests of policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_runtime.policies.registry import DraftView


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
        self.all_experts = np.argsort(rng.random((n, n_layers, n_experts)), axis=2)[..., :top_k]
        self.all_experts = self.all_experts.astype(np.int32)
        self._levels = [list(level) for level in levels]
        self._cost = cost_model or CostModel(
            0.0, np.concatenate([[0.0], 1.0 + 0.02 * np.arange(1, 200)]), np.full(n_layers, 0.1)
        )
        self._resident = (
            np.zeros((n_layers, n_experts), dtype=np.bool_) if resident is None else resident
        )
        self._level_time = level_time
        self._rate = rate
        self._acceptance = acceptance
        self._max_levels = max_levels
        self._parent = [-1]
        self._prob = [1.0]
        self._depth = [0]
        self._frontier = [0]
        self._drafted = 0
        self.calls = {"grow": 0, "experts": 0, "prices": 0}

    @property
    def parent(self) -> NDArray[np.int64]:
        return np.array(self._parent, dtype=np.int64)

    @property
    def token(self) -> NDArray[np.int64]:
        return np.arange(len(self._parent), dtype=np.int64) + 100

    @property
    def prob(self) -> NDArray[np.float64]:
        return np.array(self._prob)

    @property
    def path_prob(self) -> NDArray[np.float64]:
        path = np.array(self._prob)
        for v, u in enumerate(self._parent):
            if u >= 0:
                path[v] *= path[u]
        return path

    @property
    def depth(self) -> NDArray[np.int64]:
        return np.array(self._depth, dtype=np.int64)

    @property
    def levels(self) -> int:
        return self._drafted

    @property
    def max_levels(self) -> int | None:
        return self._max_levels

    @property
    def frontier(self) -> NDArray[np.int64]:
        return np.array(self._frontier, dtype=np.int64)

    @property
    def cost_model(self) -> CostModel:
        self.calls["prices"] += 1
        return self._cost

    @property
    def resident(self) -> NDArray[np.bool_]:
        view = self._resident.view()
        view.flags.writeable = False
        return view

    @property
    def slots(self) -> NDArray[np.int64]:
        return np.full(len(self._resident), self._resident.shape[1], dtype=np.int64)

    @property
    def cache_policy(self) -> str:
        return "lru"

    @property
    def level_time(self) -> float:
        self.calls["prices"] += 1
        return self._level_time

    @property
    def draft_time(self) -> float:
        return self._drafted * self._level_time

    @property
    def rate(self) -> float | None:
        return self._rate

    @property
    def acceptance(self) -> Sequence[float]:
        return self._acceptance

    def experts(self, first: int = 0) -> NDArray[np.int32]:
        self.calls["experts"] += 1
        return self.all_experts[first : len(self._parent)]

    def grow(self, top_k: int, width: int) -> bool:
        self.calls["grow"] += 1
        if self._drafted == len(self._levels):
            return False
        first = len(self._parent)
        per_parent: dict[int, int] = {}
        path = self.path_prob
        for parent, prob in self._levels[self._drafted]:
            if parent not in self._frontier or per_parent.get(parent, 0) == top_k:
                continue
            per_parent[parent] = per_parent.get(parent, 0) + 1
            self._parent.append(parent)
            self._prob.append(prob)
            self._depth.append(self._drafted + 1)
        if len(self._parent) == first:
            return False
        self._drafted += 1
        path = self.path_prob
        new = sorted(range(first, len(path)), key=lambda v: (-path[v], v))
        self._frontier = new[:width]
        return True


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
