"""What choosing, predicting and learning take per cycle, over recorded decoding.

    python -m benchmarks.policy_time [--traces FOLDER] [--policy NAME] [--cache SIZE] [--write]

The texts of Qwen3-30B-A3B's shape (48 layers, 128 experts, trees of up to 85 nodes) are decoded in a
replay, and every call into the policy, the predictor ``frequency`` and what learns is timed, each
without the calls inside it. A median over cycles says
what a cycle takes; a line through cycles of different depth says what of it is for the cycle and
what for each drafted level. These are what a profile states as ``cycle_overhead`` and
``level_overhead``. The traces are optional material beside the checkout; ``--write`` replaces the
file that the documentation shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from specfit_opt.files import Trace, load_trace
from specfit_opt.policies import make_policy
from specfit_opt.replay.recorded_decode import RecordedDecode
from specfit_opt.replay.recorded_drafter import RecordedDrafter
from specfit_opt.replay.recorded_view import RecordedView
from specfit_opt.replay.replay import machine_of
from specfit_opt.replay.setting import ReplaySetting
from specfit_opt.text import format_table
from specfit_runtime.predictors import make_predictor

from .traces_command import publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "policy_time.txt"
TEXTS = tuple(f"simulated/qwen3-30b-a3b-s{i}.npz" for i in (1, 2, 3))
#: Calls that stand for the recording; a live decode has a drafter and a model in their place.
RECORDING = "recording"
PARTS = ("search", "prediction", "learning")


@dataclass
class Stopwatch:
    """Seconds of the parts of the present cycle; a part's own, without the parts inside it."""

    spent: dict[str, float] = field(default_factory=dict)
    _inside: list[float] = field(default_factory=list)

    def time(self, owner: Any, name: str, part: str) -> Callable[[], None]:
        """Count the calls of a method of an object or a class; return what undoes it."""
        call, clock = getattr(owner, name), time.perf_counter

        @wraps(call)
        def timed(*args: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            begin = clock()
            try:
                return call(*args, **options)
            finally:
                took = clock() - begin
                self.spent[part] = self.spent.get(part, 0.0) + took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, call)


@dataclass(frozen=True)
class Cycle:
    """What a cycle took: seconds by part, and the replay's seconds of the pass."""

    levels: int
    nodes: int
    seconds: float
    parts: dict[str, float]


def measured(traces: Sequence[Trace], policy: str, profile: str, cache: str) -> list[Cycle]:
    """Decode the texts of all traces, and return their cycles."""
    settings = [
        ReplaySetting.of(
            trace, profile, cache=cache, expert_bytes=None, layer_repeat=None, cache_policy="lru"
        )
        for trace in traces
    ]
    machines = [machine_of(t, s, s.slots[0]) for t, s in zip(traces, settings, strict=True)]
    decode = RecordedDecode(
        traces[0], make_policy(policy), machines[0], make_predictor("frequency")
    )
    watch, cycles = Stopwatch(), []
    undo = [
        watch.time(RecordedDrafter, "level", RECORDING),
        watch.time(RecordedView, "_truth", RECORDING),
    ]
    watch.time(decode.policy, "choose", "search")
    watch.time(decode.policy, "observe", "learning")
    watch.time(decode.predictor, "predict", "prediction")
    watch.time(decode.predictor, "observe", "learning")
    watch.time(decode.calibrator, "observe", "learning")
    watch.time(decode.correction, "update", "learning")
    watch.time(decode.correction, "cost_model", "learning")
    run = decode._run

    def counted(view: RecordedView, choice: Any) -> Any:
        # A cycle's observations follow its pass, so what was spent is taken at the next one.
        found = run(view, choice)
        cycles.append((found, dict(watch.spent)))
        watch.spent.clear()
        return found

    decode._run = counted  # type: ignore[method-assign]
    try:
        for trace, machine in zip(traces, machines, strict=True):
            decode.take(trace, machine)
            for first, end in trace.prompts:
                decode.text(first, end)
    finally:
        for back in undo:
            back()
    rows = []
    for (cycle, before), (_, after) in zip(cycles, cycles[1:], strict=False):
        parts = {part: before.get(part, 0.0) for part in PARTS}
        parts["learning"] = after.get("learning", 0.0)
        rows.append(Cycle(cycle.levels, len(cycle.choice.nodes), cycle.seconds, parts))
    return rows


def charges(cycles: Sequence[Cycle]) -> tuple[float, float]:
    """Return seconds per drafting cycle and per drafted level: a line through the medians."""
    by_level: dict[int, list[float]] = {}
    for cycle in cycles:
        if cycle.levels:
            by_level.setdefault(cycle.levels, []).append(sum(cycle.parts.values()))
    levels = np.array(sorted(by_level))
    medians = np.array([np.median(by_level[level]) for level in levels])
    if len(levels) < 2:
        return 0.0, float(medians[0] / levels[0]) if len(levels) else 0.0
    weight = np.sqrt([len(by_level[level]) for level in levels])
    per_level, per_cycle = np.polyfit(levels, medians, 1, w=weight)
    return float(per_cycle), float(per_level)


def report(traces: Path, policy: str, profile: str, cache: str) -> str:
    """Return the table."""
    texts = [load_trace(traces / name) for name in TEXTS]
    cycles = [c for c in measured(texts, policy, profile, cache) if c.levels]
    total = np.array([sum(c.parts.values()) for c in cycles])
    pass_time = np.array([c.seconds for c in cycles])
    rows = []
    for part in (*PARTS, "all"):
        own = total if part == "all" else np.array([c.parts[part] for c in cycles])
        low, middle, high = (1e6 * float(np.quantile(own, q)) for q in (0.25, 0.5, 0.99))
        share = float(np.median(own / pass_time))
        rows.append([part, f"{low:.0f}", f"{middle:.0f}", f"{high:.0f}", f"{share:.2%}"])
    per_cycle, per_level = charges(cycles)
    lines = [
        f"$ python -m benchmarks.policy_time --policy {policy} --cache {cache}",
        f"qwen3-30b-a3b, {profile}, predicted routing, {len(cycles)} cycles with drafting, "
        f"{np.mean([c.levels for c in cycles]):.1f} levels, "
        f"{np.mean([c.nodes for c in cycles]):.1f} nodes verified",
        "",
        format_table(["microseconds", "p25", "p50", "p99", "of the pass"], rows),
        "",
        f"cycle_overhead {per_cycle:.2e} seconds per cycle with drafting",
        f"level_overhead {per_level:.2e} seconds per drafted level",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--policy", default="specfit", help="default: specfit")
    parser.add_argument("--profile", default="pcie4", help="default: pcie4")
    parser.add_argument("--cache", default="25%", help="default: 25%%")
    options = parser.parse_args()
    return publish(
        options,
        OUTPUT,
        lambda: report(options.traces, options.policy, options.profile, options.cache),
    )


if __name__ == "__main__":
    raise SystemExit(main())
