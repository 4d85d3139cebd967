"""Take the parts of specfit's controller away one at a time, and replay.

    python -m benchmarks.ablation [--traces FOLDER] [--jobs N] [--write]

The cells are those of `benchmarks.routing_replay` with experts in bf16 in a small and in a large
cache: with true routing; the small model's with routing predicted by what each token used before;
and these once more with a drafter that is too slow to pay. The traces are optional material beside
the checkout; ``--write`` replaces the file that the documentation shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import numpy as np

from specfit_opt.control import correction, load_repayment
from specfit_opt.control.correction import OnlineCorrection
from specfit_opt.control.load_repayment import LoadRepayment
from specfit_opt.control.plain_guard import PlainGuard
from specfit_opt.control.waste_bias import WasteBias
from specfit_opt.policies import make_policy
from specfit_opt.replay import RecordedDecode, ReplaySetting
from specfit_opt.replay.replay import machine_of
from specfit_opt.solution import node_time_at
from specfit_opt.text import format_table

from .routing_replay import SMALL, Cell, cells, traces
from .traces_command import in_processes, publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "ablation.txt"
#: Relative standard deviation of the time of a pass, exponentially distributed above its least.
JITTER = 0.3
SEEDS = (0,)
#: What drafting a level takes of a plain pass that loads nothing, where the drafter does not pay.
SLOW = 0.4
#: Of the cells, those that are replayed.
CACHES, PRECISION = ("12.5%", "50%"), "bf16"

HEAD = f"""\
$ python -m benchmarks.ablation --write

Tokens per second without a part of the controller relative to specfit with all of them: geometric
mean over the cells, least and most; x ar: over plain decoding, geometric mean and least. A value
above 1 is a part that costs. The time of a pass scatters by {JITTER:.0%}.

bias           a charge per rejected node for what such nodes load beyond the prediction
repayment      loads for rejected nodes are charged less what the cache pays back
its prior      at first, what a draft brought in is taken to be used six times as often as others
guard          speculation rests when it loses against plain decoding
price error    what cycles with drafting take beyond their price is held against them
correction     times are learned, not taken from the profile (which is right here, but for misses)
reweighting    a pass that is far off counts less in it
"""

#: What is replaced for each row, or the option that turns it off.
Part = Callable[[ExitStack], dict[str, Any]]


def _replaced(target: Any, name: str, value: Any) -> Part:
    def enter(stack: ExitStack) -> dict[str, Any]:
        stack.enter_context(patch.object(target, name, value))
        return {}

    return enter


PARTS: dict[str, Part] = {
    "bias": _replaced(WasteBias, "seconds", property(lambda self: 0.0)),
    "repayment": _replaced(LoadRepayment, "share", lambda self, slots: np.ones(len(slots))),
    "its prior": _replaced(load_repayment, "_DRAFTED_GAIN", 1.0),
    "guard": lambda stack: {"guard": False},
    "price error": _replaced(PlainGuard, "price_error", property(lambda self: 0.0)),
    "correction": _replaced(OnlineCorrection, "update", lambda self, cycle: None),
    "reweighting": _replaced(correction, "_NEAR", 1e9),
}

#: Tokens per second of plain decoding, of specfit, and without each part.
Speeds = dict[str, float]


def speed(
    cell: Cell, folder: Path, predictor: str | None, slow: float, name: str, options: Any
) -> float:
    """Return the tokens per second of a policy in a cell, all scatters together."""
    from specfit_runtime.predictors import make_predictor

    tokens, seconds = 0, 0.0
    own = traces(cell.model, folder)
    for seed in SEEDS:
        decode: RecordedDecode | None = None
        for trace in own:
            setting = ReplaySetting.of(trace, **cell.options(trace))
            machine = replace(machine_of(trace, setting, setting.slots[0]), jitter=JITTER)
            if slow:
                plain = setting.cost.fixed_time + node_time_at(setting.cost, 1)
                machine = replace(machine, draft_time=slow * plain)
            if decode is None:
                made = None if predictor is None else make_predictor(predictor)
                policy = make_policy(name, **options)
                decode = RecordedDecode(trace, policy, machine, made, seed=seed)
            else:
                decode.take(trace, machine)
            cycles = [c for first, end in trace.prompts for c in decode.text(first, end)]
            tokens += sum(c.committed for c in cycles)
            seconds += sum(c.seconds for c in cycles)
    return tokens / seconds


def run(job: tuple[Cell, Path, str | None, float]) -> Speeds:
    """Return all speeds in a cell."""
    cell, folder, predictor, slow = job
    found = {"ar": speed(cell, folder, predictor, slow, "ar", {})}
    found["specfit"] = speed(cell, folder, predictor, slow, "specfit", {})
    for name, part in PARTS.items():
        with ExitStack() as stack:
            found[name] = speed(cell, folder, predictor, slow, "specfit", part(stack))
    return found


def table(found: Sequence[Speeds]) -> str:
    """Return a row for each part."""
    rows = []
    for name in ("specfit", *PARTS):
        own = [speeds[name] / speeds["specfit"] for speeds in found]
        plain = [speeds[name] / speeds["ar"] for speeds in found]
        figures = (geometric_mean(own), min(own), max(own), geometric_mean(plain), min(plain))
        title = "with all parts" if name == "specfit" else f"without {name}"
        rows.append([title, *(f"{figure:.3f}" for figure in figures)])
    return format_table(["specfit", "mean", "least", "most", "x ar", "least"], rows)


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()

    def measured() -> str:
        parts = [HEAD]
        for title, own, predictor in (
            ("True routing", cells(caches=CACHES), None),
            ("The small model, predictor frequency", cells([SMALL], CACHES), "frequency"),
            ("The same with a drafter that does not pay", cells([SMALL], CACHES), "frequency"),
        ):
            slow = SLOW if "does not pay" in title else 0.0
            jobs = [
                (cell, options.traces, predictor, slow)
                for cell in own
                if cell.precision == PRECISION
            ]
            found = in_processes(run, jobs, options.jobs, lambda s: f"{s['specfit'] / s['ar']:.3f}")
            parts.append(f"{title}, {len(jobs)} cells\n\n{table(found)}\n")
        return "\n\n".join(parts)

    return publish(options, OUTPUT, measured)


if __name__ == "__main__":
    raise SystemExit(main())
