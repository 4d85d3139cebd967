"""Compare the rules that stop drafting, and what the choice maximises, in replays.

    python -m benchmarks.stop_rules [--traces FOLDER] [--write]

The cells are those of benchmarks.routing_replay, with true routing, and the small model's with
routing predicted by what each token used before. The traces are optional material beside the
checkout; ``--write`` replaces the file that the documentation shows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from specfit_opt.policies import make_policy
from specfit_opt.policies.ratio import STOP_RULES
from specfit_opt.text import format_table

from .routing_replay import (
    CACHES,
    ROOT,
    SMALL,
    Cell,
    Outcome,
    best_of,
    cells,
    chosen,
    fixed,
)
from .traces_command import publish, traces_parser

OUTPUT = ROOT / "benchmarks" / "results" / "stop_rules.txt"
#: By the names of the table's rows: a policy and its options.
ROWS: dict[str, tuple[str, dict[str, str]]] = {
    "specfit": ("specfit", {}),
    **{f"ratio, {rule}": ("ratio", {"stop": rule}) for rule in STOP_RULES},
    **{
        f"surplus, {rule}": ("ratio", {"stop": rule, "objective": "surplus"})
        for rule in ("naive", "certified", "expected")
    },
}


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
    options = traces_parser(__doc__, OUTPUT).parse_args()
    return publish(options, OUTPUT, lambda: report(options.traces))


def report(folder: Path) -> str:
    """Measure everything and return the tables; say on stderr how far it is."""
    import torch

    torch.set_num_threads(1)
    parts = [HEAD]
    for title, own, predictor in (
        ("True routing", list(cells()), None),
        ("The small model, predictor frequency", list(cells([SMALL])), "frequency"),
    ):
        rows = {name: replayed(own, folder, predictor, *row) for name, row in ROWS.items()}
        parts.append(f"{title}, {len(own)} cells.\n\n{table('policy, stop rule', rows)}")
    return "\n\n\n".join(parts) + "\n"


def replayed(
    own: Iterable[Cell], folder: Path, predictor: str | None, name: str, options: dict[str, str]
) -> Column:
    """Return what a policy comes to in each cell."""
    begin = time.monotonic()
    found = {}
    for cell in own:
        outcome = chosen(cell, folder, make_policy(name, **options), predictor)
        others = fixed(cell, folder)
        best = others[best_of(others)]
        found[cell] = Found(outcome.speed / best.speed, outcome.speed / others["ar"].speed, outcome)
    taken = time.monotonic() - begin
    print(f"{name} {options} {predictor}: {taken:.0f} s", file=sys.stderr)
    return found


def table(title: str, columns: dict[str, Column]) -> str:
    """Return a row for each rule or objective, and columns by cache size."""
    head = [title]
    for size in CACHES:
        head += [size, "worst"]
    head += ["all", "worst", "x ar", "levels", "nodes", "tokens"]
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
        ]
        rows.append(row)
    return format_table(head, rows, left=[title])


def mean_and_worst(found: Sequence[Found]) -> list[str]:
    values = [f.over_best for f in found]
    return [f"{geometric_mean(values):.3f}", f"{min(values):.3f}"]


HEAD = """\
$ python -m benchmarks.stop_rules --write
Tokens per second over those of the best fixed policy of the cell, which only hindsight knows:
geometric mean and worst cell by share of the experts cached, and over all; x ar: the worst cell
over plain decoding; levels, nodes, tokens: drafted, verified and committed per pass. none drafts
all six levels, with the small model the five that were recorded. specfit drafts up to four nodes a
level from each of four, the others up to ten from each of ten."""


if __name__ == "__main__":
    raise SystemExit(main())
