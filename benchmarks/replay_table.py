"""Replay every policy over the simulated traces and write the table that the documentation shows.

    python benchmarks/replay_table.py [--traces FOLDER] [--profile NAME]... [--slots N]...

The traces are optional material beside the checkout; the file is written whole or not at all.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from specfit_opt.errors import SpecfitError
from specfit_opt.files import load_trace
from specfit_opt.files.atomic import atomic_write
from specfit_opt.policies import FIXED_POLICIES
from specfit_opt.profiles import load_profile
from specfit_opt.replay import (
    WARMUP,
    PolicySummary,
    ReplayResult,
    default_policies,
    replay,
    summarise,
)

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces" / "simulated"
OUTPUT = ROOT / "benchmarks" / "results" / "replay_table.txt"
PROFILES = ("pcie4", "nvme")
#: Of each layer; 0: no cache.
SLOTS = (0, 16, 32, 64)
#: Beside the default ones: selection methods on the whole tree, and the rule of the papers with
#: the other objective.
OTHERS = ("pool-exact", "pool-greedy", "pool-chain", "ratio-surplus")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of .npz traces")
    parser.add_argument("--profile", action="append", help=f"default {' and '.join(PROFILES)}")
    parser.add_argument("--slots", action="append", type=int, help="default 0, 16, 32 and 64")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    profiles = options.profile or PROFILES
    slots = options.slots or SLOTS
    paths = sorted(options.traces.glob("*.npz"))
    if not paths:
        print(f"no traces in {options.traces}; name their folder with --traces", file=sys.stderr)
        return 2
    try:
        results = run(paths, profiles, slots)
    except SpecfitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = report(results, profiles, slots)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output, "w") as handle:
        handle.write(text)
    print(text)
    return 0


def run(paths: Sequence[Path], profiles: Sequence[str], slots: Sequence[int]) -> list[ReplayResult]:
    """Replay every trace on every machine; say on stderr how far it is."""
    results: list[ReplayResult] = []
    begin = time.monotonic()
    for number, path in enumerate(paths, start=1):
        trace = load_trace(path)
        n_nodes = int((trace.cycle_start[1:] - trace.cycle_start[:-1]).max())
        policies = [*default_policies(trace.max_depth, n_nodes), *OTHERS]
        for profile in profiles:
            results += replay(
                trace, policies=policies, profile=profile, cache=slots, cache_policy="lru"
            )
            print(
                f"{number} of {len(paths)}: {trace.name}, {profile}; "
                f"{time.monotonic() - begin:.1f} s so far",
                file=sys.stderr,
            )
    return results


def report(results: Sequence[ReplayResult], profiles: Sequence[str], slots: Sequence[int]) -> str:
    """Return all tables and what they mean as plain text."""
    traces = sorted({r.trace for r in results})
    models = sorted({model_of(name) for name in traces})
    lengths = [r.tokens for r in results if r.policy == "ar"]  # one token per counted position
    parts = [
        "Tokens per second of simulated replays: recorded routing, calibrated simulated draft "
        "trees,\n"
        f"LRU cache in the loop, the first {WARMUP} positions of a text decoded plainly and not "
        "counted.\n"
        f"Per cell the geometric mean over the traces of a model ({len(traces)} traces of "
        f"{len(models)} models).\n"
        f"A trace is one text of {min(lengths)} to {max(lengths)} counted positions, so small "
        "differences are noise. What policies do on the host is charged. Losers first.\n"
        "The best policy of a column has a star, the best fixed one an o."
    ]
    for profile in profiles:
        machine = load_profile(profile)
        own = [r for r in results if r.profile == machine.name]
        parts.append(f"{machine.name}: {machine.summary}\n\n{speeds(own, models, slots)}")
    parts.append(
        "Over all cells with a cache (trace, machine, slots): geometric means of the speed, of the "
        "speed\nover plain decoding and over the best fixed policy of the same cell, which only "
        "hindsight\nknows; and the worst cell of the last; p50, p95: median and 95th percentile of "
        "the time per\ntoken, over those of plain decoding; host: share of the time for searching, "
        f"predicting and\nlearning.\n\n{overall([r for r in results if r.slots])}"
    )
    return "\n\n\n".join(parts) + "\n"


def model_of(trace: str) -> str:
    """Return the trace's name without the number of its simulation (``-s1``)."""
    stem, dash, last = trace.rpartition("-s")
    return stem if dash and last.isdigit() else trace


def speeds(results: Sequence[ReplayResult], models: Sequence[str], slots: Sequence[int]) -> str:
    """Return one row per policy, one column per model and cache size."""
    policies = [s.policy for s in losers_first(results)]
    columns = [(model, size) for model in models for size in slots]
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for column in columns:
        found: dict[str, list[float]] = {}
        for r in results:
            if (model_of(r.trace), r.slots) == column:
                found.setdefault(r.policy, []).append(math.log(r.tokens_per_second))
        cells[column] = {p: math.exp(math.fsum(v) / len(v)) for p, v in found.items()}
    rows = [
        ["", *(model if size == slots[0] else "" for model, size in columns)],
        ["slots per layer", *(str(size) for _, size in columns)],
    ]
    for policy in policies:
        row = [policy]
        for column in columns:
            values = cells[column]
            best = max(values, key=values.__getitem__)
            best_fixed = max((f for f in FIXED_POLICIES if f in values), key=values.__getitem__)
            mark = "*" if policy == best else "o" if policy == best_fixed else " "
            row.append(f"{values[policy]:.2f}{mark}")
        rows.append(row)
    return aligned(rows, wide_first_row=True)


def losers_first(results: Sequence[ReplayResult]) -> list[PolicySummary]:
    """Return the summaries of the policies, the furthest behind the best fixed one first."""
    return sorted(summarise(results), key=lambda summary: summary.against_best_fixed)


def cell(result: ReplayResult) -> tuple[str, str, int]:
    """Return what the results of other policies share with this one."""
    return result.trace, result.profile, result.slots


def overall(results: Sequence[ReplayResult]) -> str:
    """Return one row per policy: means over all cells, and per pass."""
    rows = [
        [
            "policy",
            "tokens/s",
            "x plain",
            "x best fixed",
            "worst",
            "p50",
            "p95",
            "host",
            "tokens/pass",
            "predicted",
            "nodes",
            "levels",
            "MB/token",
        ]
    ]
    plain = {cell(r): r for r in results if r.policy == "ar"}
    for s in losers_first(results):
        own = [r for r in results if r.policy == s.policy]
        host = sum(r.overhead * r.seconds for r in own)
        passes, tokens = sum(r.passes for r in own), sum(r.tokens for r in own)
        rows.append(
            [
                s.policy,
                f"{s.tokens_per_second:.2f}",
                f"{s.speedup:.3f}",
                f"{s.against_best_fixed:.3f}",
                f"{s.worst_against_best_fixed:.3f}",
                f"{geometric_mean([r.p50_seconds / plain[cell(r)].p50_seconds for r in own]):.3f}",
                f"{geometric_mean([r.p95_seconds / plain[cell(r)].p95_seconds for r in own]):.3f}",
                f"{100.0 * host / sum(r.seconds for r in own):.1f}%",
                f"{tokens / passes:.2f}",
                f"{sum(r.predicted_tokens for r in own) / passes:.2f}",
                f"{sum(r.nodes for r in own) / passes:.1f}",
                f"{sum(r.levels for r in own) / passes:.1f}",
                f"{sum(r.bytes for r in own) / tokens / 1e6:.0f}",
            ]
        )
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]], *, wide_first_row: bool = False) -> str:
    """Return the rows as columns; titles of a wide first row may run over the columns after."""
    measured = rows[1:] if wide_first_row else rows
    widths = [max(map(len, column)) for column in zip(*measured, strict=True)]
    lines = []
    for row in rows:
        line = row[0].ljust(widths[0])
        if wide_first_row and row is rows[0]:
            at = len(line)
            for cell, width in zip(row[1:], widths[1:], strict=True):
                line = line.ljust(at) + (f"  {cell}" if cell else "")
                at += 2 + width
        else:
            for cell, width in zip(row[1:], widths[1:], strict=True):
                line += "  " + cell.rjust(width)
        lines.append(line.rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
