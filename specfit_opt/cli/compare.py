"""``specfit compare``: every method on each instance, side by side."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidInputError, MissingExtraError
from ..instance import Instance
from ..methods import METHODS
from ..solution import Solution, Status
from ..solve import solve_instance
from ..text import figure, format_table, seconds
from .inputs import add_instance_arguments, describe, read_instances
from .output import print_json

#: Methods that answer faster than this are run again, up to _REPEATS times in all.
_QUICK = 0.02
_REPEATS = 5


@dataclass(frozen=True)
class _Entry:
    """What one method did: a solution and the seconds it took, or why there is none."""

    method: str
    solution: Solution | None
    seconds: float
    reason: str = ""


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "compare",
        help="run every method on each instance",
        description="Run every method on each instance, side by side. The time is that of the "
        "whole call, the shortest of up to five runs where a run takes less than 20 ms.",
    )
    add_instance_arguments(parser)
    parser.add_argument(
        "--method",
        action="append",
        choices=METHODS,
        metavar="NAME",
        help="only this method; may be repeated. exact is always run, to measure the others by",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="for each method on each instance (10)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run the methods and print a table per instance, then one over all instances."""
    chosen = [name for name in METHODS if name == "exact" or name in (args.method or METHODS)]
    instances = read_instances(args.files)
    compared = []
    for label, instance in instances:
        limits = {"rate": args.rate, "max_nodes": args.max_nodes, "time_limit": args.time_limit}
        entries = [_attempt(instance, name, limits) for name in chosen]
        compared.append((label, instance, entries))
        if not args.json:
            _print_instance(label, instance, entries)
    if args.json:
        print_json([_to_dict(*item) for item in compared])
    elif len(compared) > 1:
        _print_overall(chosen, [entries for _, _, entries in compared])


def _attempt(instance: Instance, method: str, limits: dict[str, Any]) -> _Entry:
    best = float("inf")
    try:
        for _ in range(_REPEATS):
            start = time.perf_counter()
            solution = solve_instance(instance, method=method, **limits)
            best = min(best, time.perf_counter() - start)
            if best > _QUICK:
                break
    except MissingExtraError as error:
        return _Entry(method, None, 0.0, str(error))
    except InvalidInputError as error:
        if method == "exact":  # then the instance or a limit is at fault, not the method
            raise
        return _Entry(method, None, 0.0, f"not run: {error}")
    return _Entry(method, solution, best)


def _reference(entries: list[_Entry]) -> tuple[float, bool]:
    """Return what the others are measured by: the optimum, or a bound where there is no proof."""
    exact = next(entry.solution for entry in entries if entry.method == "exact")
    assert exact is not None
    if exact.status is Status.OPTIMAL or exact.bound is None:
        return exact.objective, exact.status is Status.OPTIMAL
    return exact.bound, False


def _relative(solution: Solution, reference: float) -> float:
    """Return the share of the reference ratio, or the tokens of surplus below the reference."""
    if solution.rate is None:
        return solution.objective / reference
    return reference - solution.objective


def _print_instance(label: str, instance: Instance, entries: list[_Entry]) -> None:
    reference, proven = _reference(entries)
    by_rate = entries[0].solution is not None and entries[0].solution.rate is not None
    name = "optimum" if proven else "bound"
    relative = f"below {name}" if by_rate else f"of {name}"
    figures = ["tokens/s", "nodes", "tokens", "experts", "cycle", "time", "proof"]
    rows = []
    for entry in entries:
        solution = entry.solution
        if solution is None:
            rows.append([entry.method, entry.reason])
            continue
        share = _relative(solution, reference)
        rows.append(
            [
                entry.method,
                f"{share:.4f}" if by_rate else f"{100.0 * share:.2f}%",
                figure(solution.throughput),
                str(solution.n_selected),
                f"{solution.expected_tokens:.3f}",
                str(int(solution.experts_loaded.sum())),
                seconds(solution.cycle_time),
                seconds(entry.seconds),
                "yes" if solution.status is Status.OPTIMAL else "",
            ]
        )
    print(f"{label}: {describe(instance)}")
    print(format_table(["method", relative, *figures], rows, left=["proof"]))
    print()


def _print_overall(chosen: list[str], compared: list[list[_Entry]]) -> None:
    by_rate = any(e.solution is not None and e.solution.rate is not None for e in compared[0])
    rows = []
    for i, method in enumerate(chosen):
        done = [
            (_relative(solution, _reference(entries)[0]), entries[i].seconds)
            for entries in compared
            if (solution := entries[i].solution) is not None
        ]
        if not done:
            rows.append([method, compared[0][i].reason])
            continue
        shares = [share for share, _ in done]
        mean, worst = sum(shares) / len(shares), (max if by_rate else min)(shares)
        rows.append(
            [
                method,
                f"{mean:.4f}" if by_rate else f"{100.0 * mean:.2f}%",
                f"{worst:.4f}" if by_rate else f"{100.0 * worst:.2f}%",
                f"{len(done)}/{len(compared)}",
                seconds(sum(t for _, t in done) / len(done)),
            ]
        )
    relative = "below optimum" if by_rate else "of optimum"
    print(f"all {len(compared)} instances")
    header = ["method", f"mean {relative}", "worst", "solved", "mean time"]
    print(format_table(header, rows))


def _to_dict(label: str, instance: Instance, entries: list[_Entry]) -> dict[str, Any]:
    reference, proven = _reference(entries)
    results: list[dict[str, Any]] = []
    for entry in entries:
        if entry.solution is None:
            results.append({"method": entry.method, "skipped": entry.reason})
            continue
        share = _relative(entry.solution, reference)
        key = "of_reference" if entry.solution.rate is None else "below_reference"
        results.append({**entry.solution.to_dict(), key: share, "seconds": entry.seconds})
    return {
        "file": label,
        "n_nodes": instance.tree.n_nodes,
        "reference": reference,
        "reference_is_optimal": proven,
        "results": results,
    }
