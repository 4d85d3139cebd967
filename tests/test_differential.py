"""Every exact solver against every other over thousands of random instances."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import Status, solve_instance
from specfit_opt.kernel import twin
from specfit_opt.methods.exact import kernel_arguments
from specfit_opt.solution import evaluate

#: Instances per kind of node time in the default suite: 8 kinds x 280 = 2,240.
DEFAULT = 280
SLOW = 4000
MIP = 16


def case(kind, seed):
    rng = np.random.default_rng([KINDS.index(kind), seed])
    instance = random_instance(rng, kind=kind)
    rate = random_rate(rng, instance) if rng.random() < 0.4 else None
    return instance, {"rate": rate, "max_nodes": random_max_nodes(rng, instance)}


def twin_solution(instance, rate, max_nodes):
    mask, proven, *_ = twin.solve(*kernel_arguments(instance, rate, max_nodes, None))
    assert proven
    return evaluate(instance.tree, instance.routing, instance.cost_model, mask, rate=rate)


def same(a, b):
    scale = a.throughput if a.rate is None else a.expected_tokens + a.rate * a.cycle_time
    return abs(a.objective - b.objective) <= 1e-9 * scale


def compare(kind, seeds):
    for seed in seeds:
        instance, limits = case(kind, seed)
        exact = solve_instance(instance, **limits)
        brute = solve_instance(instance, method="brute", **limits)
        pure = twin_solution(instance, **limits)
        exact.check(instance.tree, instance.routing, instance.cost_model)
        assert exact.status is Status.OPTIMAL, seed
        assert same(brute, exact), seed
        assert same(brute, pure), seed
        assert brute.n_selected == exact.n_selected == pure.n_selected, seed


@pytest.mark.parametrize("kind", KINDS)
def test_exact_equals_enumeration_and_the_twin(kind):
    compare(kind, range(DEFAULT))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exact_equals_enumeration_and_the_twin_at_length(kind):
    compare(kind, range(DEFAULT, DEFAULT + SLOW))


@pytest.mark.parametrize("kind", KINDS)
def test_exact_equals_the_mip(kind):
    pytest.importorskip("ortools", reason="OR-Tools is not installed (extra 'mip')")
    for seed in range(MIP):
        instance, limits = case(kind, 10_000 + seed)
        exact = solve_instance(instance, **limits)
        mip = solve_instance(instance, method="mip", **limits)
        assert mip.status is Status.OPTIMAL, seed
        assert same(exact, mip), seed


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_agree_on_trees_too_large_to_enumerate(kind):
    for seed in range(25):
        rng = np.random.default_rng([KINDS.index(kind), seed, 1])
        instance = random_instance(rng, kind=kind, n=int(rng.integers(20, 60)))
        limits = {
            "rate": random_rate(rng, instance) if seed % 2 else None,
            "max_nodes": random_max_nodes(rng, instance),
        }
        exact = solve_instance(instance, **limits)
        pure = twin_solution(instance, **limits)
        assert same(exact, pure), seed
        assert exact.n_selected == pure.n_selected, seed
