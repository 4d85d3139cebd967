"""Every method on every kind of instance: closed, feasible, true to its figures, never better."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import METHODS, InvalidInputError, Status, evaluate, solve, solve_instance
from specfit_opt.methods._sizes import allowed_sizes

SEEDS = range(12)


def tolerance(solution):
    if solution.rate is None:
        return 1e-9 * solution.throughput
    return 1e-9 * (solution.expected_tokens + solution.rate * solution.cycle_time)


@pytest.fixture(scope="module")
def cases():
    """Instances with their limits and, by enumeration, their optima."""
    found = {}
    for kind in KINDS:
        for seed in SEEDS:
            rng = np.random.default_rng(1000 + seed)
            instance = random_instance(rng, kind=kind)
            limits = {
                "rate": random_rate(rng, instance) if seed % 3 == 0 else None,
                "max_nodes": random_max_nodes(rng, instance),
            }
            best = solve_instance(instance, method="brute", **limits)
            found[kind, seed] = (instance, limits, best)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_closed_feasible_and_never_better_than_the_optimum(method, kind, cases):
    if method == "mip":
        pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")
    for seed in SEEDS:
        instance, limits, best = cases[kind, seed]
        solution = solve_instance(instance, method=method, **limits)
        solution.check(instance.tree, instance.routing, instance.cost_model)
        assert solution.method == method
        assert solution.rate == limits["rate"]
        assert allowed_sizes(instance, limits["max_nodes"])[solution.n_selected]
        fresh = evaluate(
            instance.tree,
            instance.routing,
            instance.cost_model,
            solution.mask,
            rate=limits["rate"],
        )
        assert solution.objective == pytest.approx(fresh.objective, rel=1e-9, abs=1e-9)
        assert solution.objective <= best.objective + tolerance(best), seed
        if solution.bound is not None:
            assert solution.bound >= best.objective - tolerance(best), seed
        if METHODS[method].proves:
            assert solution.status is Status.OPTIMAL, seed
            assert solution.gap == 0.0
            assert solution.objective >= best.objective - tolerance(best), seed
        else:
            assert solution.status is Status.FEASIBLE


@pytest.mark.parametrize("method", METHODS)
def test_registry_entry(method):
    entry = METHODS.find(method)
    assert entry.name == method
    assert entry.summary
    assert entry.source
    parameters = inspect.signature(entry.select).parameters
    assert list(parameters)[:4] == ["instance", "rate", "max_nodes", "time_limit"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[1:])
    # Options can be left out, and each is documented.
    for name, parameter in list(parameters.items())[4:]:
        assert parameter.default is not parameter.empty
        assert f"{name} : " in inspect.getdoc(entry.select)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_option_is_named(method):
    instance = random_instance(np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match=f"method '{method}' has no option 'colour'"):
        solve(instance.tree, instance.routing, instance.cost_model, method=method, colour=1)


def test_unknown_method():
    with pytest.raises(InvalidInputError, match="method 'magic' is unknown; the methods are exact"):
        METHODS.find("magic")
