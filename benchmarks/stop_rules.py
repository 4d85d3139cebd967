"""Compare the rules that stop drafting, and what the choice maximises, in replays.

    python -m benchmarks.stop_rules [--traces FOLDER] [--write]

The cells are those of benchmarks.routing_replay, with true routing, and the small model's with
routing predicted by what each token used before. What policies do on the host is charged; other
published rules stand beside them. The traces are optional material beside the checkout; ``--write``
replaces the file that the documentation shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from specfit_opt.policies import FIXED_POLICIES
from specfit_opt.policies.ratio import STOP_RULES
from specfit_opt.text import format_table

from .routing_replay import (
    CACHES,
    MODELS,
    ROOT,
    SMALL,
    Cell,
    Machine,
    Outcome,
    best_of,
    machines,
    replayed,
    traces,
)
from .traces_command import in_processes, publish, traces_parser

OUTPUT = ROOT / "benchmarks" / "results" / "stop_rules.txt"
#: The policies of the table's rows.
ROWS = (
    "specfit",
    *("ratio" if rule == "naive" else f"ratio-{rule}" for rule in STOP_RULES),
    *("ratio-surplus", "ratio-surplus-certified", "ratio-surplus-expected"),
    *("evict", "ecospec", "s2moe"),
)


@dataclass(frozen=True)
class Found:
    """What came of one rule or objective in one cell.

    Attributes
    ----------
    over_best, over_plain : float
        Tokens per second over those of the best fixed policy of the cell, and of plain decoding.
    outcome : Outcome
    """

    over_best: float
    over_plain: float
    outcome: Outcome


#: By cell.
Column = dict[Cell, Found]


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    return publish(options, OUTPUT, lambda: report(options.traces, options.jobs))


def report(folder: Path, processes: int = 1) -> str:
    """Measure everything and return the tables; say on stderr how far it is."""
    parts = [HEAD]
    for title, models, predictor in (
        ("True routing", MODELS, None),
        ("The small model, predictor frequency", (SMALL,), "frequency"),
    ):
        jobs = [(machine, folder, predictor) for machine in machines(models)]
        found = in_processes(run, jobs, processes, lambda columns: f"{len(columns)} rows")
        columns = {
            name: {cell: one for part in found for cell, one in part[name].items()}
            for name in ROWS
        }
        n_cells = len(columns["specfit"])
        parts.append(f"{title}, {n_cells} cells.\n\n{table('policy', columns)}")
    return "\n\n\n".join(parts) + "\n"


def run(job: tuple[Machine, Path, str | None]) -> dict[str, Column]:
    """Return what each policy comes to in the cells of a machine."""
    import torch

    torch.set_num_threads(1)
    machine, folder, predictor = job
    texts = traces(machine.model, folder)
    columns: dict[str, Column] = {name: {} for name in ROWS}
    by_cell = replayed(machine.cells(CACHES), texts, (*FIXED_POLICIES, *ROWS), predictor)
    for cell, outcomes in by_cell.items():
        best, plain = outcomes[best_of(outcomes)].speed, outcomes["ar"].speed
        for name in ROWS:
            own = outcomes[name]
            columns[name][cell] = Found(own.speed / best, own.speed / plain, own)
    return columns


def table(title: str, columns: dict[str, Column]) -> str:
    """Return a row for each policy, losers first, and columns by cache size."""
    head = [title]
    for size in CACHES:
        head += [size, "worst"]
    head += ["all", "worst", "x ar", "levels", "nodes", "tokens", "host"]
    rows = []
    for name, found in columns.items():
        row = [name]
        for size in CACHES:
            row += mean_and_worst([f for cell, f in found.items() if cell.cache == size])
        everything = list(found.values())
        row += mean_and_worst(everything)
        row.append(f"{min(f.over_plain for f in everything):.3f}")
        outcomes = [f.outcome for f in everything]
        passes = sum(o.passes for o in outcomes)
        row += [
            f"{sum(o.levels for o in outcomes) / passes:.2f}",
            f"{sum(o.nodes for o in outcomes) / passes:.1f}",
            f"{sum(o.tokens for o in outcomes) / passes:.2f}",
            f"{100.0 * sum(o.host for o in outcomes) / sum(o.seconds for o in outcomes):.1f}%",
        ]
        rows.append((geometric_mean([f.over_best for f in everything]), row))
    return format_table(head, [row for _, row in sorted(rows)], left=[title])


def mean_and_worst(found: Sequence[Found]) -> list[str]:
    values = [f.over_best for f in found]
    return [f"{geometric_mean(values):.3f}", f"{min(values):.3f}"]


HEAD = """\
$ python -m benchmarks.stop_rules --write
Tokens per second over those of the best fixed policy of the cell, which only hindsight knows:
geometric mean and worst cell by share of the experts cached, and over all; x ar: the worst cell
over plain decoding; levels, nodes, tokens: drafted, verified and committed per pass; host: share of
the time for searching, predicting and learning. ratio stops by the naive rule, the others as their
names say; ratio-none drafts all six levels, with the small model the five that were recorded.
specfit and s2moe draft up to four nodes a level from each of four, ecospec three levels of two from
each of two, the others up to ten from each of ten."""


if __name__ == "__main__":
    raise SystemExit(main())
