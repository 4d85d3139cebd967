"""Compare the learned price of an unneeded load with fixed shares of it and with looking ahead.

    python -m benchmarks.lookahead [--traces FOLDER] [--jobs N] [--write]

The cells are those of `benchmarks.routing_replay` with true routing and experts in bf16. The traces
are optional material beside the checkout; ``--write`` replaces the file that the documentation
shows, whole or not at all. Half an hour on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.control.load_repayment import LoadRepayment
from specfit_opt.policies import Choice, DraftView, Policy, SpecFitPolicy
from specfit_opt.text import format_table

from .lookahead_policy import Lookahead
from .routing_replay import CACHES, MODELS, Cell, best_of, cells, chosen, fixed
from .traces_command import in_processes, publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "lookahead.txt"
#: Tokens to which the longer lookahead goes on with plain decoding.
TAIL = 40
#: Shares of the price that are tried, beside all of it.
SHARES = (0.75, 0.5, 0.25, 0.1, 0.0)
TRIED = ("in full", *(f"{share:g}" for share in SHARES))
PRECISION = "bf16"
COLUMNS = ("in full", "learned", "best share", "two passes", "and tail", "one pass")

HEAD = f"""\
$ python -m benchmarks.lookahead --write

Tokens per second relative to the best fixed policy of the cell, which only hindsight knows; true
routing, LRU cache, experts in bf16. Geometric mean over pcie4 and nvme, and the worse of them.

in full     specfit, all of a load that the text does not need is charged
learned     specfit as it is
best share  specfit with one share of the price for all layers and passes, the best of
            1, {", ".join(f"{share:g}" for share in SHARES)} in the cell, with hindsight
two passes  lookahead: knows the routing of what comes, and the levels to draft; not the acceptance
and tail    the same, and plain decoding after it, up to {TAIL} tokens from each position
one pass    the same knowledge for this pass alone
"""

Speeds = dict[str, float]


def share_policy(share: float) -> Any:
    """Return specfit with a constant share of the price of an unneeded load."""
    class Constant(LoadRepayment):
        def share(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.full(len(slots), share)

    class AtShare(SpecFitPolicy):
        def fresh(self) -> Policy:
            return AtShare()

        def choose(self, view: DraftView) -> Choice:
            if self.repayment is None:
                self.repayment = Constant(*view.resident.shape)
            return super().choose(view)

    return AtShare()


def contenders() -> dict[str, Callable[[], Any]]:
    """Return what makes each policy, by name."""
    return {
        "in full": partial(share_policy, 1.0),
        "learned": SpecFitPolicy,
        **{f"{share:g}": partial(share_policy, share) for share in SHARES},
        "two passes": partial(Lookahead, cache_policy="lru"),
        "and tail": partial(Lookahead, tail=TAIL, cache_policy="lru"),
        "one pass": partial(Lookahead, 1, cache_policy="lru"),
    }


def run(job: tuple[Cell, Path]) -> Speeds:
    """Return each policy's speed in a cell, relative to the best fixed policy's."""
    import torch

    torch.set_num_threads(1)
    cell, folder = job
    others = fixed(cell, folder)
    base = others[best_of(others)].speed
    made = contenders().items()
    return {name: chosen(cell, folder, make()).speed / base for name, make in made}


def report(found: dict[Cell, Speeds]) -> str:
    """Return the tables."""
    rows = []
    for model in MODELS:
        for size in CACHES:
            some = [s for cell, s in found.items() if (cell.model, cell.cache) == (model, size)]
            rows.append([model.name, size, *figures(some)])
    for size in CACHES:
        some = [speeds for cell, speeds in found.items() if cell.cache == size]
        rows.append(["all", size, *figures(some)])
    rows.append(["all", "all", *figures(found.values())])
    head = ["model", "cache", *(part for name in COLUMNS for part in (name, "worst"))]
    single = []
    for name in TRIED:
        values = [speeds[name] for speeds in found.values()]
        single.append([name, f"{mean(values):.3f}", f"{min(values):.3f}"])
    one = format_table(["share", "mean", "worst"], single, left=["share"])
    table = format_table(head, rows, left=["model"])
    return f"{HEAD}\n{table}\n\nThe same share in all cells:\n\n{one}\n"


def figures(some: Iterable[Speeds]) -> list[str]:
    """Return mean and worst, column by column."""
    parts = []
    speeds = [{**s, "best share": max(s[name] for name in TRIED)} for s in some]
    for name in COLUMNS:
        values = [s[name] for s in speeds]
        parts += [f"{mean(values):.3f}", f"{min(values):.3f}"]
    return parts


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    jobs = [(cell, options.traces) for cell in cells() if cell.precision == PRECISION]

    def measured() -> str:
        speeds = in_processes(run, jobs, options.jobs, told)
        return report({cell: found for (cell, _), found in zip(jobs, speeds, strict=True)})

    return publish(options, OUTPUT, measured)


def told(speeds: Speeds) -> str:
    """Return a cell's figures in a line."""
    return ", ".join(f"{name} {speed:.3f}" for name, speed in speeds.items())


if __name__ == "__main__":
    raise SystemExit(main())
