"""Measure what policies take on the host: the times that replays charge.

    python -m benchmarks.policy_times [--traces FOLDER] [--write]

Each policy that is not fixed decodes the recorded texts of Qwen3-30B-A3B's size (48 layers of 128
experts, 8 per token, pools of 85 nodes) on the PCIe 4 profile with a quarter of the experts cached
and routing predicted by what each token used before. Measured is processor time of this thread, of
each cycle the least of several runs, which are alike but for the clock, so that other work on the
machine counts little; drafting, prediction and the replay itself are taken out. The last lines are
what :mod:`specfit_opt.profiles.policy_time` holds, rounded up; the prediction is specfit's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from time import thread_time
from typing import Any

from specfit_opt.files import Trace, load_trace
from specfit_opt.policies import ADAPTIVE_POLICIES, make_policy
from specfit_opt.replay import RecordedDecode, ReplaySetting
from specfit_opt.replay.recorded_view import RecordedView
from specfit_opt.replay.replay import machine_of
from specfit_opt.text import format_table

from .traces_command import publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "policy_times.txt"
TEXTS = tuple(f"simulated/qwen3-30b-a3b-s{seed}.npz" for seed in (1, 2, 3))
PROFILE, CACHE = "pcie4", "25%"
POLICIES = (*ADAPTIVE_POLICIES, "pool-exact")
#: Runs, of which each cycle's least time counts.
RUNS = 5

#: Levels, own seconds and the machine's, of each cycle.
Rows = list[tuple[int, float, float]]


class TimedDecode(RecordedDecode):
    """A decode that notes, cycle by cycle, levels, own seconds, and seconds of each prediction."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows: Rows = []
        self.predictions: list[float] = []  # one for each prediction
        self._drafting = self._predicting = self._own = 0.0
        recorded, predict = self.policy.choose, self.predictor.predict
        self.policy.choose = self._timed("_own", recorded)  # type: ignore[method-assign]
        self.predictor.predict = self._timed(  # type: ignore[method-assign]
            "_predicting", predict, self.predictions
        )

    def _timed(
        self, part: str, call: Callable[..., Any], each: list[float] | None = None
    ) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = thread_time()
            found = call(*arguments)
            took = thread_time() - begin
            setattr(self, part, getattr(self, part) + took)
            if each is not None:
                each.append(took)
            return found

        return timed

    def _view(self, at: int, limit: int | None) -> RecordedView:
        view = super()._view(at, limit)
        drafter: Any = view._drafter
        drafter.begin = self._timed("_drafting", drafter.begin)
        drafter.level = self._timed("_drafting", drafter.level)
        return view

    def _learn(self, *arguments: Any) -> None:
        self._timed("_own", super()._learn)(*arguments)

    def _cycle(self, *arguments: Any) -> Any:
        self._drafting = self._predicting = self._own = 0.0
        cycle = super()._cycle(*arguments)
        own = self._own - self._drafting - self._predicting
        machine = cycle.compute_seconds + cycle.draft_seconds + cycle.transfer_seconds
        self.rows.append((cycle.levels, own, machine))
        return cycle


def measured(name: str, texts: list[Trace]) -> tuple[Rows, list[float]]:
    """Return the least levels, own and machine seconds of cycles, and seconds of predictions."""
    runs = [decoded(name, texts) for _ in range(RUNS)]
    rows = [min(cycle) for cycle in zip(*(run.rows for run in runs), strict=True)]
    return rows, [min(one) for one in zip(*(run.predictions for run in runs), strict=True)]


def decoded(name: str, texts: list[Trace]) -> TimedDecode:
    """Return a decode of the texts, each from an empty cache."""
    from specfit_runtime.predictors import make_predictor

    setting = ReplaySetting.of(
        texts[0],
        PROFILE,
        cache=CACHE,
        expert_bytes=None,
        layer_repeat=None,
        cache_policy="lru",
    )
    machine = machine_of(texts[0], setting, setting.slots[0])
    decode = TimedDecode(texts[0], make_policy(name), machine, make_predictor("frequency"))
    for text in texts:
        decode.take(text, machine)
        for first, end in text.prompts:
            decode.text(first, end)
    return decode


def report(folder: Path) -> str:
    """Return the table, and the figures to charge."""
    texts = [load_trace(folder / name) for name in TEXTS]
    rows, lines, prediction = [], [], 0.0
    for name in POLICIES:
        cycles, asked = measured(name, texts)
        cycle = median(own for levels, own, _ in cycles if not levels)
        drafted = [row for row in cycles if row[0]]
        level = median((own - cycle) / levels for levels, own, _ in drafted)
        own = sum(own for _, own, _ in drafted) + sum(asked)
        rows.append(
            [
                name,
                f"{1e6 * cycle:.0f}",
                f"{1e6 * level:.0f}",
                f"{1e6 * fmean(asked):.0f}" if asked else "-",
                f"{sum(levels for levels, _, _ in drafted) / len(drafted):.1f}",
                f"{100.0 * own / sum(machine for *_, machine in drafted):.1f}%",
            ]
        )
        if name == "specfit":
            prediction = fmean(asked)
        key = name.partition("-")[0]
        lines.append(f'"{key}": PolicyTime(cycle={_up(cycle)}, level={_up(max(level, 0.0))}),')
    head = ["policy", "us a cycle", "us a level", "us a prediction", "levels", "of a pass"]
    figures = "\n".join([*lines, f"PREDICTION_TIME = {_up(prediction)}"])
    return f"{HEAD}\n{format_table(head, rows)}\n\n{figures}\n"


def _up(seconds: float) -> str:
    """Return the seconds, rounded up to two digits."""
    if seconds <= 0.0:
        return "0.0"
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return f"{math.ceil(seconds / unit) * unit:.1e}"


HEAD = f"""\
$ python -m benchmarks.policy_times --write

Processor time of one thread, of each cycle the least of {RUNS} runs. us a cycle: what a policy
takes when nothing is drafted; us a level: what each drafted level adds, prediction left out; us a
prediction: of the routing of what was drafted since the last one, by the predictor frequency, mean;
levels: drafted per pass that drafts; of a pass: all of that over what the machine takes for such a
pass ({PROFILE}, {CACHE} cached).
"""


def main() -> int:
    options = traces_parser(__doc__, OUTPUT).parse_args()
    return publish(options, OUTPUT, lambda: report(options.traces))


if __name__ == "__main__":
    raise SystemExit(main())
