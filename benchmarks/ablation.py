"""Take the parts of specfit's controller away one at a time, and replay on real branches.

    python -m benchmarks.ablation --recordings FOLDER [--purpose choose] [--jobs N] [--write]

The recordings are those of `benchmarks.record_branches`, made first where FOLDER lacks them, and
routing is predicted by what each token used before. Each set is replayed from nothing learned, on
machines where loads cost little to much. Which parts stay was decided by the sets called
``choose``; ``--write`` replaces the file that the documentation shows, of those called ``judge``.
Half an hour on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import numpy as np

from specfit_opt.control import correction, waste_bias
from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.control.correction import OnlineCorrection
from specfit_opt.control.load_repayment import LoadRepayment
from specfit_opt.control.plain_guard import PlainGuard
from specfit_opt.control.waste_bias import WasteBias
from specfit_opt.files import Trace
from specfit_opt.policies import make_policy, specfit
from specfit_opt.replay import RecordedDecode, ReplayedCycle, ReplaySetting, SimulatedMachine
from specfit_opt.replay.recorded_decode import RecordedTrees
from specfit_opt.replay.replay import machine_of
from specfit_opt.solution import node_time_at
from specfit_opt.text import format_table

from .record_branches import PURPOSES, prompt_sets, record, recorded_sets
from .routing_replay import SMALL, Cell
from .traces_command import in_processes, show

OUTPUT = Path(__file__).resolve().parent / "results" / "ablation.txt"
#: Machines, expert sizes and caches, from where loads cost little to where they cost much.
CELLS = (
    Cell(SMALL, "pcie5", "4-bit", "25%"),
    Cell(SMALL, "pcie4", "bf16", "50%"),
    Cell(SMALL, "pcie4", "bf16", "25%"),
    Cell(SMALL, "pcie4", "bf16", "12.5%"),
    Cell(SMALL, "nvme", "bf16", "25%"),
)
#: Relative standard deviation of the time of a pass, exponentially distributed above its least.
JITTER = 0.3
#: What drafting a level takes of a plain pass that loads nothing, where the drafter does not pay.
SLOW = 0.4

#: What is replayed: the decoding, and the drafter.
SECTIONS = (
    ("Drawn", "sampled", 0.0),
    ("Greedy", "greedy", 0.0),
    ("Slow, drawn", "sampled", SLOW),
    ("Slow, greedy", "greedy", SLOW),
)

HEAD = f"""\
$ python -m benchmarks.ablation --recordings FOLDER --write

Tokens per second without a part of the controller relative to specfit with all of them: geometric
mean over the cells, least and most; x ar: over plain decoding, geometric mean and least. A value
above 1 is a part that costs. Real branches of the shipped model, predictor frequency, each set
from nothing learned. Policies see passes whose time scatters by {JITTER:.0%}; what is compared are
the mean times. Drawn: text at temperature 1; slow: the drafter takes {SLOW} of a pass that loads
nothing for each level, so that speculation does not pay.

calibration    probabilities of acceptance are learned, not the drafter's own
bias           a charge per rejected node for what such nodes load beyond the prediction
its prior      at first, such a node is taken to load a fifth of what a token does
its fading     the charge fades while it keeps everything from being verified
repayment      loads for rejected nodes are charged less what the cache pays back
guard          speculation rests when it loses against plain decoding
savings        what unneeded loads are expected to save counts as gained
price error    what cycles with drafting take beyond their price is held against them
correction     times are learned, not taken from the profile (which is right here, but for misses)
misses         predicted misses are corrected
reweighting    a pass that is far off counts less in the correction
"""

#: What is replaced for each row, or the option that turns it off.
Part = Callable[[ExitStack], dict[str, Any]]


def _replaced(target: Any, name: str, value: Any) -> Part:
    def enter(stack: ExitStack) -> dict[str, Any]:
        stack.enter_context(patch.object(target, name, value))
        return {}

    return enter


PARTS: dict[str, Part] = {
    "calibration": _replaced(AcceptanceCalibrator, "observe", lambda self, *cycle: None),
    "bias": _replaced(WasteBias, "seconds", property(lambda self: 0.0)),
    "its prior": _replaced(waste_bias, "_PRIOR_SHARE", 0.0),
    "its fading": _replaced(waste_bias, "_UNTESTED", 1.0),
    "repayment": _replaced(LoadRepayment, "share", lambda self, slots: np.ones(len(slots))),
    "guard": lambda stack: {"guard": False},
    "savings": _replaced(specfit, "UnneededLoads", lambda unused, repaid: None),
    "price error": _replaced(PlainGuard, "price_error", property(lambda self: 0.0)),
    "correction": _replaced(OnlineCorrection, "update", lambda self, cycle: None),
    "misses": _replaced(OnlineCorrection, "_weigh_misses", lambda self: None),
    "reweighting": _replaced(correction, "_NEAR", 1e9),
}

#: Tokens per second of plain decoding, of specfit, and without each part.
Speeds = dict[str, float]


@lru_cache(maxsize=1)
def sets(folder: Path, purpose: str, decoding: str) -> list[tuple[Trace, RecordedTrees]]:
    """Return the recorded sets with their trees, once for all cells."""
    return [(trace, RecordedTrees(trace)) for trace in recorded_sets(folder, purpose, decoding)]


def played(
    cell: Cell, trace: Trace, trees: RecordedTrees, slow: float, name: str, options: Any
) -> tuple[int, float]:
    """Return the tokens and seconds of a policy that begins a set with nothing learned."""
    from specfit_runtime.predictors import make_predictor

    setting = ReplaySetting.of(trace, **cell.options(trace))
    machine = replace(machine_of(trace, setting, setting.slots[0]), jitter=JITTER)
    if slow:
        plain = setting.cost.fixed_time + node_time_at(setting.cost, 1)
        machine = replace(machine, draft_time=slow * plain)
    policy = make_policy(name, **options)
    decode = RecordedDecode(trace, policy, machine, make_predictor("frequency"))
    cycles = [c for text in trace.prompts for c in decode.text(*text, trees=trees)]
    return sum(c.committed for c in cycles), sum(mean_seconds(c, machine) for c in cycles)


def speed(own: Sequence[tuple[Trace, RecordedTrees]], cell: Cell, *policy: Any) -> float:
    """Return the tokens per second of a policy in a cell, all sets together."""
    found = [played(cell, *each, *policy) for each in own]
    return sum(tokens for tokens, _ in found) / sum(seconds for _, seconds in found)


def mean_seconds(cycle: ReplayedCycle, machine: SimulatedMachine) -> float:
    """Return what a cycle takes on the mean, without the scatter that its policy saw."""
    cost = machine.cost_model
    compute = cost.fixed_time + node_time_at(cost, len(cycle.choice.nodes))
    return cycle.seconds - cycle.compute_seconds + compute


def run(job: tuple[Cell, Path, str, str, float]) -> Speeds:
    """Return all speeds in a cell."""
    cell, folder, purpose, decoding, slow = job
    own = sets(folder, purpose, decoding)
    found = {name: speed(own, cell, slow, name, {}) for name in ("ar", "specfit")}
    for name, part in PARTS.items():
        with ExitStack() as stack:
            found[name] = speed(own, cell, slow, "specfit", part(stack))
    return found


def table(found: Sequence[Speeds]) -> str:
    """Return a row for each part, those first that cost."""
    rows = []
    for name in ("specfit", *PARTS):
        own = [speeds[name] / speeds["specfit"] for speeds in found]
        plain = [speeds[name] / speeds["ar"] for speeds in found]
        figures = (geometric_mean(own), min(own), max(own), geometric_mean(plain), min(plain))
        title = "with all parts" if name == "specfit" else f"without {name}"
        rows.append((figures[0], [title, *(f"{figure:.3f}" for figure in figures)]))
    ordered = [rows[0], *sorted(rows[1:], reverse=True)]
    head = ["specfit", "mean", "least", "most", "x ar", "least"]
    return format_table(head, [row for _, row in ordered])


def report(folder: Path, purpose: str, jobs: int) -> str:
    """Replay everything and return the tables; say on stderr how far it is."""
    parts = [HEAD]
    for title, decoding, slow in SECTIONS:
        work = [(cell, folder, purpose, decoding, slow) for cell in CELLS]
        found = in_processes(run, work, jobs, lambda s: f"{s['specfit'] / s['ar']:.3f}")
        n_sets = len(sets(folder, purpose, decoding))
        heading = f"{title}, {len(work)} cells, {n_sets} sets of texts called {purpose}"
        parts.append(f"{heading}\n\n{table(found)}\n")
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recordings", type=Path, required=True, help="folder of recordings")
    parser.add_argument("--purpose", choices=PURPOSES, default="judge", help="which sets; judge")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    record(options.recordings, prompt_sets(options.purpose))
    show(report(options.recordings, options.purpose, options.jobs), OUTPUT, options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
