"""Compare the rules that stop drafting, and what the choice maximises, in replays and live.

    python -m benchmarks.stop_rules [--traces FOLDER] [--write]

The cells are those of benchmarks.routing_replay, with true routing, and the small model's with
routing predicted by what each token used before. Live, the shipped model decodes held-out texts
with each rule, free to speculate: counts only, but rules go by measured times, so these counts
differ from run to run. The replays do not. The traces are optional material beside the checkout;
``--write`` replaces the file that the documentation shows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from specfit_opt.text import format_table

from .prefetch_waste import decoded, eagle3, offloaded
from .routing_replay import (
    CACHES,
    ROOT,
    SMALL,
    Cell,
    Outcome,
    best_of,
    cells,
    fixed,
    simulated,
)
from .traces_command import publish, traces_parser

if TYPE_CHECKING:
    from specfit_runtime.report import DecodeTotals

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

OUTPUT = ROOT / "benchmarks" / "results" / "stop_rules.txt"
RULES = ("expected", "certified", "naive", "gain-share", "none")
RULE_NAMES = (*(f"specfit-{rule}" for rule in RULES), *(f"specfit-depth-{k}" for k in range(1, 6)))
#: By the names of the tables: what differs from the default.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "waste, less what is repaid": {},
    "waste": {"repayment": False},
    "ratio": {"objective": "ratio"},
    "surplus": {"objective": "surplus"},
}
LIVE_CACHE, N_TEXTS, NEW_TOKENS = 0.25, 6, 64


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
        ("True routing", list(cells()), "oracle"),
        ("The small model, predictor frequency", list(cells([SMALL])), "frequency"),
    ):
        rules = {
            name.removeprefix("specfit-"): replayed(own, folder, predictor, name)
            for name in RULE_NAMES
        }
        objectives = {
            name: replayed(own, folder, predictor, "specfit", **options) if options else default
            for default in (rules["expected"],)
            for name, options in OBJECTIVES.items()
        }
        parts.append(f"{title}, {len(own)} cells.\n\n{table('rule', rules)}")
        parts.append(f"The same by objective, rule expected.\n\n{table('objective', objectives)}")
    parts.append(live())
    return "\n\n\n".join(parts) + "\n"


def replayed(
    own: Iterable[Cell], folder: Path, predictor: str, name: str, **options: Any
) -> Column:
    """Return what a policy comes to in each cell."""
    from specfit_runtime.policies import make_policy

    begin = time.monotonic()
    found = {}
    for cell in own:
        outcome = simulated(cell, folder, make_policy(name, **options), predictor)
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


def live() -> str:
    """Decode with every rule and return the table."""
    from specfit_runtime import SpecFit, calibrate, demo_drafter
    from specfit_runtime.policies import make_policy

    rows = []
    with offloaded(LIVE_CACHE, None) as model:
        profile = calibrate(model, eagle3(model))
        # A guard that keeps some rules from drafting for a while would hide what the rules do.
        policies = [make_policy("ar"), *(make_policy(name, guard=False) for name in RULE_NAMES)]
        for policy in policies:
            spec = SpecFit(f"eagle3:{demo_drafter()}", policy=policy, profile=profile)
            rows.append(live_row(policy.name, decoded(model, spec, N_TEXTS, NEW_TOKENS)))
            print(f"live {policy.name}", file=sys.stderr)
    head = ["policy", "tokens", "levels", "nodes", "loads", "kB/token"]
    return (
        f"Live: the shipped model, {N_TEXTS} held-out texts of {NEW_TOKENS} new tokens, "
        f"{LIVE_CACHE:.0%} of the experts cached, the\nothers in memory. All rules start from one "
        "calibration, and draft whether or not that pays. Per pass:\ntokens committed, levels "
        "drafted, nodes verified, experts loaded; and bytes per token.\n\n"
        + format_table(head, rows, left=["policy"])
    )


def live_row(name: str, totals: DecodeTotals) -> list[str]:
    return [
        name,
        f"{totals.tokens_per_pass:.2f}",
        f"{totals.levels / totals.passes:.2f}",
        f"{totals.verified_per_pass:.2f}",
        f"{totals.misses / totals.passes:.1f}",
        f"{totals.bytes_per_token / 1e3:.0f}",
    ]


HEAD = """\
$ python -m benchmarks.stop_rules --write
Tokens per second over those of the best fixed policy of the cell, which only hindsight knows:
geometric mean and worst cell by share of the experts cached, and over all; x ar: the worst cell
over plain decoding; levels, nodes, tokens: drafted, verified and committed per pass. none drafts
all six levels, with the small model the five that were recorded."""


if __name__ == "__main__":
    raise SystemExit(main())
