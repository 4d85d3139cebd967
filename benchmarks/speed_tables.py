"""Time the exact method and write the tables that the documentation shows.

    python -m benchmarks.speed_tables [--repeats N] [--skip-mip]

Each table is written whole or not at all. Times are of one process on one machine; the ratios are
what can be compared.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from specfit_opt import ExpertRouting, Instance, TreeSearch, kernel, solve
from specfit_opt.files.atomic import atomic_write
from specfit_opt.generate import generate

from . import dinkelbach_maxflow
from .bench_limits import HARD
from .bench_scaling import EXPERTS, LAYERS, NODES
from .problems import (
    REAL_AFFINE,
    REAL_ALL,
    SEEDS,
    STAIRCASES,
    levels,
    per_expert,
    qwen3,
    real,
    sized,
)
from .timing import median_time, times

RESULTS = Path(__file__).parent / "results"
COMMAND = "python -m benchmarks.speed_tables"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=300, help="calls per median (default 300)")
    parser.add_argument("--skip-mip", action="store_true", help="leave out the slow MIP column")
    options = parser.parse_args()
    write("speed.txt", speed(options.repeats))
    write("solvers.txt", solvers(options.repeats, not options.skip_mip))
    write("scaling.txt", scaling(options.repeats))


def write(name: str, lines: Iterable[str]) -> None:
    text = "\n".join([f"$ {COMMAND}", f"kernel: {kernel.NAME} ({rows_in_use()} rows)", "", *lines])
    with atomic_write(RESULTS / name, "w") as handle:
        handle.write(text + "\n")
    print(text, end="\n\n")


def rows_in_use() -> str:
    if kernel.NAME != "cython":
        return "no"
    from specfit_opt.kernel import _kernel

    return _kernel.ROWS


def microseconds(call: Callable[[], object], repeats: int) -> float:
    return 1e6 * median_time(call, repeats)


def solving(problem: Instance) -> Callable[[], object]:
    return lambda: solve(problem.tree, problem.routing, problem.cost_model)


def row(label: str, taken: Sequence[Sequence[float]]) -> str:
    """Return a line of the speed table: percentiles over all calls, and over cases of medians."""
    calls = np.concatenate([1e6 * np.asarray(case) for case in taken])
    medians = [1e6 * statistics.median(case) for case in taken]
    low, high = np.percentile(calls, (50, 99))
    figures = f"{low:9.1f}{high:9.1f}{min(medians):10.1f}{max(medians):10.1f}"
    return f"{label:<52}{figures}{len(taken):6d}"


def speed(repeats: int) -> Iterable[str]:
    """Time whole calls of solve, packing and TreeSearch."""
    title = f"microseconds, {repeats} calls of each case"
    yield f"{title:<52}      p50      p99 least p50  most p50 cases"

    def line(label: str, calls: Iterable[Callable[[], object]]) -> str:
        return row(label, [times(call, repeats) for call in calls])

    problems = [qwen3(seed) for seed in SEEDS]
    size = "solve, 60 nodes x 48 x 128, top-8"
    yield line(f"{size}, one price", map(solving, problems))
    yield line(f"{size}, price per expert", map(solving, map(per_expert, problems)))
    yield line("packing the same", map(packing, problems))
    for name in STAIRCASES:
        tables = [qwen3(seed, name) for seed in SEEDS]
        assert all(solve(p.tree, p.routing, p.cost_model).gap == 0.0 for p in tables)
        yield line(f"solve, 60 nodes, {name} table, proven", map(solving, tables))
    pools = [qwen3(seed, nodes=611) for seed in SEEDS]
    yield line("solve, pool of 611 nodes, one price", map(solving, pools))
    yield line("solve, pool of 611 nodes, price per expert", map(solving, map(per_expert, pools)))
    if REAL_AFFINE:
        real_ones = [real(name) for name in REAL_AFFINE]
        yield line("solve, real routing, one price", map(solving, real_ones))
        priced = map(per_expert, real_ones)
        yield line("solve, real routing, price per expert", map(solving, priced))
        yield line("solve, real routing, all tables", (solving(real(name)) for name in REAL_ALL))
    for label, waste in (("every load charged", False), ("waste alone charged", True)):
        extended, advised, decided = search_times(repeats, waste)
        yield row(f"TreeSearch.extend by 10 nodes, {label}", extended)
        yield row("  advise on it, with its bound", advised)
        yield row("  expects_gain of it", decided)
    yield ""
    yield f"{'hard stars of 200 nodes, time_limit=1.0':<44}  seconds   status      gap"
    for name in HARD:
        problem = generate(name, seed=0, nodes=200)
        solution = solve(problem.tree, problem.routing, problem.cost_model, time_limit=1.0)
        call = lambda p=problem: solve(p.tree, p.routing, p.cost_model, time_limit=1.0)  # noqa: E731
        yield (
            f"{name:<44}{median_time(call, 3):9.3f} {solution.status.value:>8} {solution.gap:8.2%}"
        )


def packing(problem: Instance) -> Callable[[], object]:
    routing = problem.routing
    return lambda: ExpertRouting(routing.experts, routing.n_experts, routing.resident)


def search_times(repeats: int, waste: bool) -> tuple[list[list[float]], ...]:
    """Return the seconds of extend, advise and expects_gain, by level, but for the root's."""
    cases: dict[tuple[int, int], tuple[list[float], ...]] = {}
    for seed in SEEDS:
        instance, parts = levels(seed)
        routing = instance.routing
        share = np.full(routing.n_layers, 0.8) if waste else None
        for _ in range(repeats):
            search = TreeSearch(
                instance.cost_model,
                routing.n_layers,
                routing.n_experts,
                routing.resident,
                waste_share=share,
            )
            for level, part in enumerate(parts):
                marks = [time.perf_counter()]
                search.extend(*part)
                marks.append(time.perf_counter())
                search.advise(0.001, 0.7)
                marks.append(time.perf_counter())
                search.expects_gain(0.001, 0.7)
                marks.append(time.perf_counter())
                if level:
                    kept = cases.setdefault((seed, level), ([], [], []))
                    for own, (a, b) in zip(kept, itertools.pairwise(marks), strict=True):
                        own.append(b - a)
    return tuple([case[i] for case in cases.values()] for i in range(3))


def solvers(repeats: int, with_mip: bool) -> Iterable[str]:
    """Compare with Dinkelbach over OR-Tools' maximum flow and with the MIP, ratios of one run."""
    yield f"{'problem':<44}{'exact us':>9}{'maxflow':>9}{'MIP':>11}"
    names: list[tuple[str, Instance]] = [
        (f"qwen3-30b-a3b, 60 nodes, seed {seed}", qwen3(seed)) for seed in list(SEEDS)[:4]
    ]
    names += [(name, real(name)) for name in REAL_AFFINE]
    flows, mips = [], []
    for label, problem in names:
        ours = median_time(solving(problem), repeats)
        best = solve(problem.tree, problem.routing, problem.cost_model).throughput
        found = dinkelbach_maxflow.solve(problem).throughput
        assert abs(found / best - 1.0) < 1e-6, label
        flow = median_time(lambda p=problem: dinkelbach_maxflow.solve(p), 5) / ours
        flows.append(flow)
        line = f"{label:<44}{1e6 * ours:9.1f}{flow:8.0f}x"
        if with_mip:

            def mip(p: Instance = problem) -> float:
                solution = solve(p.tree, p.routing, p.cost_model, method="mip")
                assert solution.gap == 0.0
                return solution.throughput

            assert abs(mip() / best - 1.0) < 1e-6, label
            ratio = median_time(mip, 1) / ours
            mips.append(ratio)
            line += f"{ratio:10.0f}x"
        yield line
    yield f"{'least':<44}{'':9}{min(flows):8.0f}x" + (f"{min(mips):10.0f}x" if mips else "")
    yield (
        f"{'median':<44}{'':9}{statistics.median(flows):8.0f}x"
        + (f"{statistics.median(mips):10.0f}x" if mips else "")
    )
    yield ""
    yield "How many times as long as the exact method take"
    yield "  maxflow: Dinkelbach's method over OR-Tools' maximum flow (dinkelbach_maxflow.py)"
    yield "  MIP:     method='mip', HiGHS"


def scaling(repeats: int) -> Iterable[str]:
    """Change one dimension of the 60 x 48 x 128 problem at a time."""
    for title, values, make in (
        ("nodes", NODES, lambda v: sized(nodes=v)),
        ("layers", LAYERS, lambda v: sized(layers=v)),
        ("experts", EXPERTS, lambda v: sized(experts=v)),
    ):
        yield f"{title:>8}  microseconds  rounds  cuts  chosen"
        for value in values:
            problem = make(value)
            solution = solve(problem.tree, problem.routing, problem.cost_model)
            taken = microseconds(solving(problem), max(10, repeats * 60 // max(value, 60)))
            stats = solution.stats
            yield (
                f"{value:8d}{taken:14.1f}{stats['rounds']:8d}{stats['cuts']:6d}"
                f"{solution.n_selected:8d}"
            )
        yield ""


if __name__ == "__main__":
    main()
