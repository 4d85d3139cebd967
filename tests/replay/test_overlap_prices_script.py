"""What benchmarks/overlap_prices.py claims of sets under hinges, against enumeration."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import benchmark_script

from specfit_opt import CostModel, DraftTree
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import save_trace


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("overlap_prices", monkeypatch)


@pytest.mark.parametrize("seed", range(12))
def test_no_set_is_above_the_bound(script: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, shape = 8, (2, 6)
    parent = np.array([-1, *(int(rng.integers(0, v)) for v in range(1, n))])
    tree = DraftTree.from_conditional(parent, np.r_[1.0, rng.uniform(0.3, 0.9, n - 1)])
    experts = np.array([[rng.choice(6, 2, replace=False) for _ in range(2)] for _ in range(n)])
    one = script.Pass(tree, experts, rng.random(shape) < 0.3)
    cost = CostModel(1.0, 0.05, rng.uniform(0.1, 0.3, 2))
    hinges = script.Hinges(cost, np.full(2, 0.3), rng.uniform(0.3, 1.0, 2))
    closed = [
        np.array([0, *rest])
        for size in range(n)
        for rest in combinations(range(1, n), size)
        if all(parent[v] in (0, *rest) for v in rest)
    ]
    best = max(one.rate(nodes, hinges) for nodes in closed)
    found, bound = script.bounded(one, hinges, [np.array([0])])
    assert found <= best * (1 + 1e-12)
    assert bound >= best * (1 - 1e-12)
    # Fixed shares are nowhere above the true time.
    share = rng.random(2)
    for nodes in closed:
        misses = one.misses(nodes)
        linear = hinges.at(share)
        seconds = linear.fixed_time + linear.node_time * len(nodes)
        seconds += float(misses @ np.asarray(linear.expert_time))
        assert seconds <= hinges.seconds(len(nodes), misses) + 1e-12


def test_a_cell_is_judged(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routing_replay = benchmark_script("routing_replay", monkeypatch)
    save_trace(tmp_path / "example.npz", example_trace())
    size = {"bf16": EXAMPLE_EXPERT_BYTES}
    files = ("example.npz", "example.npz")
    model = routing_replay.Model("example", files, size, EXAMPLE_LAYER_REPEAT)
    cell = routing_replay.Cell(model, "pcie4", "bf16", "25%")
    results = script.judged(cell, tmp_path, 20)
    assert len(results) == len(script.SETTINGS)
    for found in results:
        assert list(found) == ["full", "one factor", "per layer", "line", "twice", "bound"]
        assert found["bound"] >= 1.0
        assert max(value for name, value in found.items() if name != "bound") <= 1.0
        assert found["twice"] >= found["one factor"]
