"""The proven optimum: persistency, minimum cut, Dinkelbach, branch and bound."""

from __future__ import annotations

import math
from typing import Any

from .. import kernel
from ..instance import Instance
from ..solution import (
    RELATIVE_TOLERANCE,
    Figures,
    Solution,
    Status,
    expected_figures,
    solution_from_figures,
)
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
) -> Solution:
    """Return the optimum with its proof, or, past ``time_limit``, the best known and a bound.

    Notes
    -----
    See the algorithm section of the theory page, and :mod:`specfit_opt.kernel`.
    """
    mask, proven, objective, bound, stats, figures = kernel.solve(
        *kernel_arguments(instance, rate, max_nodes, time_limit)
    )
    assert figures is not None  # no virtual nodes were given
    solution = solution_from_figures(
        expected_figures(instance.routing, Figures(mask, *figures)),
        instance.cost_model,
        fixed_time=instance.cost_model.fixed_time,
        rate=rate,
        method="exact",
        stats=stats,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        bound=bound,
    )
    check_claim(solution, objective)
    return solution


def kernel_arguments(
    instance: Instance, rate: float | None, max_nodes: int | None, time_limit: float | None
) -> tuple[Any, ...]:
    """Return the arguments of the kernel's ``solve`` for a problem and its limits."""
    tree, cost = instance.tree, instance.cost_model
    return (
        tree.parent,
        tree.path_prob,
        instance.routing.rows,
        *instance.kernel_prices(),
        cost.fixed_time,
        cost.node_time,
        math.nan if rate is None else rate,
        tree.n_nodes if max_nodes is None else max_nodes,
        math.inf if time_limit is None else time_limit,
    )


def check_claim(solution: Solution, objective: float) -> None:
    """Compare what the kernel says it reached with the definition of the objective."""
    scale = solution.throughput
    if solution.rate is not None:  # relative to the terms of the difference
        scale = solution.expected_tokens + solution.rate * solution.cycle_time
    if abs(solution.objective - objective) > RELATIVE_TOLERANCE * scale:
        raise AssertionError(
            f"the kernel claims {objective!r} but its set evaluates to {solution.objective!r}; "
            "please report this with the instance (specfit_opt.save_instance)"
        )


METHOD = Method(
    name="exact",
    select=select,
    summary="proven optimum of the ratio or the surplus",
    source="Dinkelbach 1967; Picard 1976; Gallo, Grigoriadis, Tarjan 1989; theory page",
    proves=True,
)
