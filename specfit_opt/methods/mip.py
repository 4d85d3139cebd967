"""The ratio as one mixed-integer program: a reference that shares nothing with Dinkelbach."""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import OneOf
from ..errors import MissingExtraError, SpecfitError
from ..expert_union import expert_prices, topmost_use, used_experts
from ..instance import Instance
from ..kernel import interrupt
from ..solution import Solution, Status, build_solution
from ._sizes import allowed_sizes, mask_of
from .method import Method

#: Relative error that a floating-point MIP solver is trusted to keep to. Its bound is padded by
#: as much, and an answer further off than this is not called optimal.
TOLERANCE = 1e-6

_SOLVERS = ("highs", "gscip")

# Seconds between two looks for a request to stop.
_PATIENCE = 0.05
# Seconds that MathOpt can take for a limit, some thirty years.
_LONGEST = 1e9


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    solver: str = "highs",
) -> Solution:
    """Solve the ratio, or the surplus, as a mixed-integer program.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`.
    solver : {"highs", "gscip"}
        Solver behind OR-Tools MathOpt.

    Returns
    -------
    Solution
        Its figures are recomputed from the chosen nodes, never taken from the solver. OPTIMAL when
        the solver proved optimality and its objective agrees with the recomputed one to 1e-6: a
        proof within floating-point tolerances. Otherwise FEASIBLE, with the solver's bound padded
        by 1e-6 relative to the terms of the objective; if the solver has no solution by
        ``time_limit``, the prefix by path probability of the smallest allowed size
        (``stats["incumbent"]`` is then ``"prefix"``).

    Raises
    ------
    InvalidInputError
        If ``solver`` is unknown.
    MissingExtraError
        If OR-Tools is not installed.
    SpecfitError
        If the solver fails.

    Notes
    -----
    Let x_v say whether v is chosen, and r = 1 / T, scaled so that r <= 1. With y_v = r x_v the
    objective, sum p_v y_v, is linear, and so is what defines r:
    ``r fixed + sum_k g_k q_k + sum_j w_j z_j <= 1``, where z_j >= y_v for every user v of expert
    j, and q_k = r c_k for the binaries c_k that pick the size (for affine g, sums of y_v serve
    instead). As r <= 1, the products are exact with a big-M of 1: ``y_v <= x_v``, ``y_v <= r``,
    ``y_v >= r - (1 - x_v)``; for c, of which one is set, ``q_k <= c_k`` and ``sum q_k = r``. The
    surplus needs no products. Experts with equal users, and uses below an ancestor's, are merged.
    Exponential time in the worst case. An interrupt ends the call at once, but MathOpt stops
    neither solver before its time: it works on in the background, to ``time_limit`` at most, and
    nobody reads its answer.

    References
    ----------
    .. [1] A. Charnes, W. W. Cooper, "Programming with linear fractional functionals", Naval
       Research Logistics Quarterly 9, 1962.
    """
    started = time.perf_counter()
    solver = OneOf(_SOLVERS)(solver, "option solver")
    mathopt = _mathopt()
    terms = _terms(instance, max_nodes)
    model, x = _model(mathopt, instance.tree.parent, terms, rate)
    result = _in_background(
        lambda: mathopt.solve(
            model,
            getattr(mathopt.SolverType, solver.upper()),
            params=_parameters(mathopt, solver, started, time_limit),
        )
    )
    reason = result.termination.reason
    limits = (mathopt.TerminationReason.FEASIBLE, mathopt.TerminationReason.NO_SOLUTION_FOUND)
    if reason is not mathopt.TerminationReason.OPTIMAL and reason not in limits:
        raise SpecfitError(
            f"{solver} stopped with {reason.name}: {result.termination.detail or 'no detail'}"
        )
    stats: dict[str, Any] = {"solver": solver, "termination": reason.name.lower()}
    stats["variables"] = model.get_num_variables()
    stats["incumbent"] = "solver" if result.has_primal_feasible_solution() else "prefix"
    if result.has_primal_feasible_solution():
        mask = _rounded(instance, terms, result.variable_values(), x)
        claimed = terms.unscaled(result.objective_value(), rate)
    else:
        smallest = int(terms.sizes[0])
        mask, claimed = mask_of(instance, instance.tree.prefix_order()[:smallest]), None
    solution = build_solution(instance, mask, rate=rate, method="mip", stats=stats)
    # What TOLERANCE is relative to: the objective is a difference of two terms in the surplus.
    scale = solution.throughput
    if rate is not None:
        scale = solution.expected_tokens + rate * solution.cycle_time
    proven = (
        reason is mathopt.TerminationReason.OPTIMAL
        and claimed is not None
        and abs(claimed - solution.objective) <= TOLERANCE * scale
    )
    bound = terms.unscaled(result.termination.objective_bounds.dual_bound, rate)
    stats["solver_bound"] = bound if math.isfinite(bound) else None
    bound = min(bound + TOLERANCE * max(scale, abs(bound)), terms.trivial_bound(rate))
    return build_solution(
        instance,
        mask,
        rate=rate,
        method="mip",
        stats=stats,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        bound=max(bound, solution.objective),
    )


@dataclass(frozen=True)
class _Terms:
    """The instance as the model takes it: times relative to the shortest possible pass."""

    unit: float  # seconds: no pass is shorter
    sizes: NDArray[np.int64]  # allowed, ascending
    prob: NDArray[np.float64]
    n_roots: int
    constant: float  # fixed time and the experts of the roots
    node_time: NDArray[np.float64]  # of ``sizes``
    affine: bool  # node_time is a straight line over consecutive sizes
    users: list[NDArray[np.int64]]  # of each merged expert; no root among them
    price: list[float]

    @property
    def extra(self) -> list[int]:
        """The allowed numbers of nodes besides the roots."""
        extra: list[int] = (self.sizes - self.n_roots).tolist()
        return extra

    @property
    def fewest(self) -> int:
        """The least of them."""
        return self.extra[0]

    @property
    def most(self) -> int:
        """The greatest of them."""
        return self.extra[-1]

    def unscaled(self, value: float, rate: float | None) -> float:
        """Return an objective of the model in the units of the problem."""
        return value / self.unit if rate is None else value

    def trivial_bound(self, rate: float | None) -> float:
        """Return a bound that needs no solver: all tokens in the shortest pass."""
        tokens = float(self.prob.sum())
        return tokens / self.unit if rate is None else tokens - rate * self.unit


def _terms(instance: Instance, max_nodes: int | None) -> _Terms:
    tree, cost = instance.tree, instance.cost_model
    sizes = allowed_sizes(instance, max_nodes).nonzero()[0]
    node_time = cost.node_table(tree.n_nodes)[sizes]
    topmost = topmost_use(tree, used_experts(instance.routing))
    price = expert_prices(instance)
    by_roots = topmost[tree.roots].any(axis=0)
    merged: dict[bytes, float] = {}
    columns: dict[bytes, NDArray[np.int64]] = {}
    for j in (topmost.any(axis=0) & ~by_roots & (price > 0.0)).nonzero()[0].tolist():
        key = np.packbits(topmost[:, j]).tobytes()
        if key not in merged:
            columns[key] = topmost[:, j].nonzero()[0]
        merged[key] = merged.get(key, 0.0) + float(price[j])
    constant = cost.fixed_time + float(price[by_roots].sum())
    unit = constant + float(node_time.min())
    line = np.linspace(node_time[0], node_time[-1], len(sizes))
    straight = np.abs(node_time - line).max() <= 1e-14 * node_time.max()
    return _Terms(
        unit=unit,
        sizes=sizes,
        prob=tree.path_prob,
        n_roots=tree.n_roots,
        constant=constant / unit,
        node_time=node_time / unit,
        affine=bool(straight) and bool((np.diff(sizes) == 1).all()),
        users=list(columns.values()),
        price=[value / unit for value in merged.values()],
    )


def _model(
    mathopt: Any, parent: NDArray[np.int32], terms: _Terms, rate: float | None
) -> tuple[Any, dict[int, Any]]:
    """Build the model; return it with the binaries of the nodes that are no roots."""
    model = mathopt.Model(name="specfit")
    add = model.add_linear_constraint
    free = (parent >= 0).nonzero()[0].tolist()
    x = {v: model.add_binary_variable(name=f"x{v}") for v in free}
    for v in free:
        if parent[v] in x:
            add(x[v] <= x[parent[v]])
    chosen = mathopt.fast_sum(x.values())
    lowest, highest = terms.fewest, terms.most
    picks: list[Any] = []
    if terms.affine:
        add(chosen >= lowest)
        add(chosen <= highest)
    else:
        picks = [model.add_binary_variable(name=f"c{k}") for k in terms.sizes.tolist()]
        add(mathopt.fast_sum(picks) == 1)
        add(mathopt.fast_sum(k * c for k, c in zip(terms.extra, picks, strict=True)) == chosen)

    node, pick, one = x, picks, 1.0
    if rate is None:
        node, pick, one = _times_ratio(mathopt, model, parent, terms, x, picks)

    # From here on, `one` stands for 1 and `node`, `pick` for x, c: each multiplied by r or not.
    expert = [model.add_variable(lb=0.0, ub=1.0) for _ in terms.price]
    for z, users in zip(expert, terms.users, strict=True):
        for v in users.tolist():
            add(z >= node[v])
    transfer = mathopt.fast_sum(w * z for w, z in zip(terms.price, expert, strict=True))
    if terms.affine:
        rise = terms.node_time[-1] - terms.node_time[0]
        slope = float(rise) / (highest - lowest) if highest > lowest else 0.0
        sized = (float(terms.node_time[0]) - slope * lowest) * one + slope * mathopt.fast_sum(
            node.values()
        )
    else:
        sized = mathopt.fast_sum(g * q for g, q in zip(terms.node_time.tolist(), pick, strict=True))
    cycle = terms.constant * one + sized + transfer
    tokens = float(terms.n_roots) * one + mathopt.fast_sum(
        float(terms.prob[v]) * node[v] for v in free
    )
    if rate is None:
        add(cycle <= 1.0)
        model.maximize(tokens)
    else:
        model.maximize(tokens - rate * terms.unit * cycle)
    return model, x


def _times_ratio(
    mathopt: Any,
    model: Any,
    parent: NDArray[np.int32],
    terms: _Terms,
    x: dict[int, Any],
    picks: list[Any],
) -> tuple[dict[int, Any], list[Any], Any]:
    """Return the products of r with the binaries of nodes and of sizes, and r itself."""
    add = model.add_linear_constraint
    ratio = model.add_variable(lb=0.0, ub=1.0, name="r")
    node = {v: model.add_variable(lb=0.0, ub=1.0, name=f"y{v}") for v in x}
    for v in x:
        add(node[v] <= x[v])
        add(node[v] >= ratio - (1 - x[v]))
        add(node[v] <= node.get(parent[v], ratio))
    pick = [model.add_variable(lb=0.0, ub=1.0, name=f"q{k}") for k in range(len(picks))]
    for q, c in zip(pick, picks, strict=True):
        add(q <= c)
    chosen = mathopt.fast_sum(node.values())
    if pick:
        add(mathopt.fast_sum(pick) == ratio)
        add(mathopt.fast_sum(k * q for k, q in zip(terms.extra, pick, strict=True)) == chosen)
    else:
        add(chosen >= terms.fewest * ratio)
        add(chosen <= terms.most * ratio)
    return node, pick, ratio


def _rounded(
    instance: Instance, terms: _Terms, values: Any, x: dict[int, Any]
) -> NDArray[np.bool_]:
    """Return the solver's choice as a mask after checking that it is a legal one."""
    tree = instance.tree
    mask = tree.parent < 0
    for v, variable in x.items():
        mask[v] = values[variable] > 0.5
    orphans = mask & (tree.parent >= 0) & ~mask[tree.parent]
    if orphans.any() or int(mask.sum()) not in terms.sizes:
        raise SpecfitError(
            "the MIP solver's answer violates its own constraints after rounding: nodes "
            f"{mask.nonzero()[0].tolist()}"
        )
    return mask


def _in_background(call: Callable[[], Any]) -> Any:
    """Return what ``call`` does in a thread of its own: an interrupt reaches one that waits."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    # A daemon, so that one that was left behind does not keep the process from ending.
    worker = threading.Thread(target=run, name="specfit mip", daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(_PATIENCE)
        interrupt.look_up()
    if errors:
        raise errors[0]
    return answers[0]


def _parameters(mathopt: Any, solver: str, started: float, time_limit: float | None) -> Any:
    parameters = mathopt.SolveParameters(
        relative_gap_tolerance=1e-10,
        absolute_gap_tolerance=1e-10,
    )
    if time_limit is not None:
        left = time_limit - (time.perf_counter() - started)
        parameters.time_limit = datetime.timedelta(seconds=min(max(left, 1e-3), _LONGEST))
    if solver == "highs":
        for name in ("primal_feasibility_tolerance", "mip_feasibility_tolerance"):
            parameters.highs.double_options[name] = 1e-9
    else:
        parameters.threads = 1  # so that the answer does not depend on the machine
        parameters.gscip.real_params["numerics/feastol"] = 1e-9
    return parameters


def _mathopt() -> Any:
    try:
        from ortools.math_opt.python import mathopt
    except ImportError:
        raise MissingExtraError("ortools", "mip") from None
    return mathopt


METHOD = Method(
    name="mip",
    select=select,
    summary="mixed-integer program of the ratio, by HiGHS or SCIP",
    source="Charnes and Cooper 1962; OR-Tools MathOpt",
    proves=True,
)
