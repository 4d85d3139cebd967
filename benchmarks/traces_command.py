"""What the benchmarks that replay the optional traces share: their command line and processes."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from specfit_opt.errors import SpecfitError
from specfit_opt.files.atomic import atomic_write

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
#: A recording below the folder of traces, by which it is known.
SMALL_TRACE = "small/qwen3moe-8x64-draft-lm.npz"

_Result = TypeVar("_Result")


def traces_parser(doc: str | None, output: Path) -> argparse.ArgumentParser:
    """Return a parser with the options ``--traces`` and ``--write``."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces")
    parser.add_argument("--write", action="store_true", help=f"write {output.name}")
    return parser


def publish(options: argparse.Namespace, output: Path, report: Callable[[], str]) -> int:
    """Print the report, and write it whole or not at all if asked; return the exit code."""
    if not (options.traces / SMALL_TRACE).exists():
        print(f"no traces in {options.traces}; name their folder with --traces", file=sys.stderr)
        return 2
    try:
        text = report()
    except SpecfitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    show(text, output, options.write)
    return 0


def show(text: str, output: Path, write: bool) -> None:
    """Print a report, and write it whole or not at all if asked."""
    print(text)
    if write:
        output.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(output, "w") as handle:
            handle.write(text)


def in_processes(
    run: Callable[[Any], _Result],
    jobs: Sequence[Any],
    processes: int,
    figure: Callable[[_Result], str],
    note: Callable[[Any, _Result], None] | None = None,
) -> list[_Result]:
    """Run jobs, each for the cell or machine that it begins with; say on stderr how far it is.

    ``note`` is told each job and its result as soon as it is there.
    """
    begin, found = time.monotonic(), []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for job, result in zip(jobs, pool.imap(run, jobs), strict=True):
            found.append(result)
            if note is not None:
                note(job, result)
            took = time.monotonic() - begin
            print(f"{job[0]}: {figure(result)}; {took:.0f} s so far", file=sys.stderr)
    return found
