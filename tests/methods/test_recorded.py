"""Every method on every recorded instance: closed, feasible, never better than the optimum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfit_opt import METHODS, Status, load_instance, solve_instance
from specfit_opt.methods._sizes import allowed_sizes

DATA = Path(__file__).resolve().parents[1] / "data"
OPTIMA = json.loads((DATA / "optima.json").read_text())
# brute enumerates and refuses larger trees; mip takes seconds on the larger instances.
SLOW = ("mip",)
LIMITED = ("brute", "mip")
SMALL = 16  # nodes


def check(method, instance, best):
    solution = solve_instance(instance, method=method)
    solution.check(instance.tree, instance.routing, instance.cost_model)
    assert allowed_sizes(instance, None)[solution.n_selected]
    assert solution.throughput <= best * (1 + 1e-9)
    if METHODS[method].proves:
        assert solution.status is Status.OPTIMAL
        assert solution.throughput == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", OPTIMA)
@pytest.mark.parametrize("method", [m for m in METHODS if m not in LIMITED])
def test_recorded_instance(method, name):
    check(method, load_instance(DATA / f"{name}.npz"), OPTIMA[name]["throughput"])


@pytest.mark.parametrize("name", [n for n in OPTIMA if OPTIMA[n]["nodes"] <= SMALL])
@pytest.mark.parametrize("method", LIMITED)
def test_small_recorded_instance(method, name):
    if method == "mip":
        pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")
    check(method, load_instance(DATA / f"{name}.npz"), OPTIMA[name]["throughput"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OPTIMA if OPTIMA[n]["nodes"] > SMALL])
@pytest.mark.parametrize("method", SLOW)
def test_large_recorded_instance_under_a_limit(method, name):
    pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")
    instance, best = load_instance(DATA / f"{name}.npz"), OPTIMA[name]["throughput"]
    solution = solve_instance(instance, method=method, time_limit=60.0)
    assert solution.throughput <= best * (1 + 1e-9)
    assert solution.bound >= best * (1 - 1e-9)
    if solution.status is Status.OPTIMAL:
        assert solution.throughput == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in LIMITED])
def test_instances_of_real_routing(method, shared):
    folder = shared / "instances"
    recorded = json.loads((folder / "optima.json").read_text())
    for name in (n for n in recorded if n.startswith("real-")):
        check(method, load_instance(folder / f"{name}.npz"), recorded[name]["throughput"])
