"""Replay specfit over recorded traces beside the best fixed policy of each cell.

    python -m benchmarks.routing_replay [--traces FOLDER] [--write]

A cell is a model, a machine, an expert size and a cache size. With true routing all traces are
replayed, the three simulations of a large model one after the other, as texts of one decode; with
predicted routing the small model's recording alone, whose layers stand for six each. The cache is
an LRU, as in the reference semantics of the trace format. Each cell is replayed six times from
nothing learned, beginning at other positions of the texts, because a text is short and one pass may
decide. The traces are optional material beside the checkout; ``--write`` replaces the file that the
documentation shows. A quarter of an hour on one core.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files import Trace, load_trace
from specfit_opt.replay import ReplayResult, replay
from specfit_opt.text import format_table

from .traces_command import SMALL_TRACE, publish, traces_parser

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "routing_replay.txt"

PROFILES = ("pcie4", "nvme")
CACHES = ("12.5%", "25%", "37.5%", "50%")
#: Positions at the start of a text that stand for its prompt: of the trace format, and of this
#: table.
ONE_START, STARTS = (12,), (8, 10, 12, 14, 16, 18)
FIXED = ("ar", *(f"chain-{k}" for k in range(1, 7)), *(f"eagle-{n}" for n in (8, 16, 32, 60)))


@dataclass(frozen=True, eq=False)
class Model:
    """A recorded model.

    Attributes
    ----------
    name : str
    files : tuple of str
        Below the folder of traces.
    expert_bytes : dict of str to int or None
        By precision; None: what the traces say.
    layer_repeat : int
    """

    name: str
    files: tuple[str, ...]
    expert_bytes: dict[str, int | None]
    layer_repeat: int = 1


def _large(name: str, hidden: int, intermediate: int) -> Model:
    files = tuple(f"simulated/{name}-s{seed}.npz" for seed in (1, 2, 3))
    sizes = {"bf16": 3 * hidden * intermediate * 2, "4-bit": None}
    return Model(name, files, sizes)


SMALL = Model(
    "qwen3moe-8x64",
    (SMALL_TRACE,),
    # The small model is of Qwen3-30B-A3B's form and takes its prices, as recorded for that one.
    {"bf16": EXAMPLE_EXPERT_BYTES, "4-bit": 3_059_712},
    EXAMPLE_LAYER_REPEAT,
)
MODELS = (
    _large("gemma-4-26b-a4b", 2816, 704),
    _large("gpt-oss-120b", 2880, 2880),
    _large("qwen3-30b-a3b", 2048, 768),
    SMALL,
)


@dataclass(frozen=True)
class Cell:
    """One combination of what a user cannot choose."""

    model: Model
    profile: str
    precision: str
    cache: str

    def options(self, trace: Trace) -> dict[str, Any]:
        """Return the arguments of a replay of ``trace``."""
        size = self.model.expert_bytes[self.precision]
        return {
            "profile": self.profile,
            "cache": self.cache,
            "cache_policy": "lru",
            "expert_bytes": trace.expert_bytes if size is None else size,
            "layer_repeat": self.model.layer_repeat,
        }


@dataclass(frozen=True)
class Outcome:
    """What a policy came to in a cell, all traces and starts together."""

    tokens: int
    seconds: float
    predicted: float
    expected: float
    passes: int
    nodes: int
    levels: int

    @classmethod
    def of(cls, results: Sequence[ReplayResult]) -> Outcome:
        return cls(
            tokens=sum(r.tokens for r in results),
            seconds=math.fsum(r.seconds for r in results),
            predicted=math.fsum(r.predicted_tokens for r in results),
            expected=math.fsum(r.expected_tokens for r in results),
            passes=sum(r.passes for r in results),
            nodes=sum(r.nodes for r in results),
            levels=sum(r.levels for r in results),
        )

    @classmethod
    def sum(cls, parts: Sequence[Outcome]) -> Outcome:
        return cls(**{f.name: sum(getattr(part, f.name) for part in parts) for f in fields(cls)})

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def cells(models: Iterable[Model] = MODELS, caches: Sequence[str] = CACHES) -> Iterator[Cell]:
    """Yield all cells."""
    for model in models:
        for profile in PROFILES:
            for precision in model.expert_bytes:
                for size in caches:
                    yield Cell(model, profile, precision, size)


@cache
def traces(model: Model, folder: Path) -> tuple[Trace, ...]:
    """Load the traces of a model."""
    return tuple(load_trace(folder / name) for name in model.files)


@cache
def fixed(cell: Cell, folder: Path, starts: tuple[int, ...] = ONE_START) -> dict[str, Outcome]:
    """Return what each fixed policy comes to in a cell."""
    return replayed(cell, traces(cell.model, folder), starts)


def replayed(
    cell: Cell, own: Sequence[Trace], starts: Sequence[int] = ONE_START
) -> dict[str, Outcome]:
    """Return what each fixed policy comes to over some traces."""
    found: dict[str, list[ReplayResult]] = {}
    for trace, start in itertools.product(own, starts):
        able = [p for p in FIXED if not p.startswith("chain-") or int(p[6:]) <= trace.max_depth]
        for result in replay(trace, policies=able, warmup=start, **cell.options(trace)):
            found.setdefault(result.policy, []).append(result)
    return {policy: Outcome.of(results) for policy, results in found.items()}


def chosen(
    cell: Cell,
    folder: Path,
    policy: Any = "specfit",
    predictor: str | None = None,
    starts: tuple[int, ...] = ONE_START,
) -> Outcome:
    """Return what a policy that learns comes to in a cell."""
    return chosen_over(cell, traces(cell.model, folder), policy, predictor, starts)


def chosen_over(
    cell: Cell,
    own: Sequence[Trace],
    policy: Any = "specfit",
    predictor: str | None = None,
    starts: Sequence[int] = ONE_START,
) -> Outcome:
    """Return what a policy that learns comes to over some traces, one decode per start."""
    # All traces of a model have the same expert sizes.
    options = {"policies": [policy], **cell.options(own[0])}
    if predictor is not None:
        from specfit_runtime.predictors import make_predictor

        options["predictor"] = lambda: make_predictor(predictor)
    return Outcome.of([r for start in starts for r in replay(own, warmup=start, **options)])


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Return the texts of even and of odd number."""
    number = np.repeat(np.arange(len(trace.prompts)), [end - at for at, end in trace.prompts])
    return trace.select(number % 2 == 0), trace.select(number % 2 == 1)


def learned_elsewhere(folder: Path, work: Path) -> list[tuple[Trace, str]]:
    """Return each half of the small recording, and a predictor trained on the other half."""
    from specfit_runtime.predictor_training import train_predictor
    from specfit_runtime.predictors.routing_network_files import save_network

    (trace,) = traces(SMALL, folder)
    pair = halves(trace)
    found = []
    for number, (own, other) in enumerate((pair, pair[::-1])):
        training = train_predictor([other], held_out=0.2)
        place = work / str(number)
        save_network(place, training.network, card="for a replay of the other texts")
        found.append((own, f"learned:{place}"))
    return found


def crossed(cell: Cell, parts: Sequence[tuple[Trace, str]]) -> Outcome:
    """Return what specfit comes to in a cell of the small model, each half with its predictor."""
    return Outcome.sum(
        [chosen_over(cell, [own], "specfit", predictor, STARTS) for own, predictor in parts]
    )


def best_of(outcomes: dict[str, Outcome]) -> str:
    """Return the fastest policy."""
    return max(outcomes, key=lambda policy: outcomes[policy].speed)


def table(found: dict[Cell, Outcome], folder: Path) -> str:
    """Return a row per cell, losers first."""
    rows = []
    for cell, own in found.items():
        others = fixed(cell, folder, STARTS)
        best = best_of(others)
        ratio = own.speed / others[best].speed
        rows.append(
            (
                ratio,
                [
                    cell.model.name,
                    cell.profile,
                    cell.precision,
                    cell.cache,
                    f"{ratio:.3f}",
                    best,
                    f"{own.speed / others['ar'].speed:.3f}",
                    f"{own.tokens / own.passes:.2f}",
                    f"{own.nodes / own.passes:.1f}",
                    f"{own.levels / own.passes:.1f}",
                    f"{own.tokens / own.expected:.3f}",
                    f"{others[best].tokens / others[best].predicted:.3f}",
                ],
            )
        )
    head = ["model", "machine", "experts", "cache", "x best", "best", "x ar", "tokens", "nodes"]
    head += ["levels", "got", "best got"]
    left = ["model", "machine", "experts", "best"]
    return format_table(head, [row for _, row in sorted(rows)], left=left)


def summary(found: dict[Cell, Outcome], folder: Path) -> str:
    """Return the worst cells and the means."""
    ratios, plain, single = [], [], {policy: [] for policy in FIXED}  # type: ignore[var-annotated]
    for cell, own in found.items():
        others = fixed(cell, folder, STARTS)
        ratios.append(own.speed / others[best_of(others)].speed)
        plain.append(own.speed / others["ar"].speed)
        for policy in FIXED:
            # Where pools are not as deep as a chain is long, the longest possible stands in.
            at_hand = policy if policy in others else f"chain-{_deepest(others)}"
            single[policy].append(own.speed / others[at_hand].speed)
    best = min(FIXED, key=lambda policy: _mean(single[policy]))
    under = sum(ratio < 0.99 for ratio in ratios)
    return (
        f"{len(ratios)} cells. Over the best fixed policy of each cell, chosen with hindsight: "
        f"least {min(ratios):.3f}, geometric mean {_mean(ratios):.3f}, below 0.99 in {under}.\n"
        f"Over plain decoding: least {min(plain):.3f}, geometric mean {_mean(plain):.3f}. Over the "
        f"best single fixed policy, {best}: geometric mean {_mean(single[best]):.3f}."
    )


def _deepest(outcomes: dict[str, Outcome]) -> int:
    return max(int(policy[6:]) for policy in outcomes if policy.startswith("chain-"))


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


_LENGTHS = f"{', '.join(map(str, STARTS[:-1]))} or {STARTS[-1]}"
HEAD = f"""\
Each cell six times from nothing learned: the first {_LENGTHS} positions of
a text stand for its prompt. x best, x ar: tokens per second relative to the best fixed policy of
the cell, which only hindsight knows, and to plain decoding; tokens, nodes, levels: committed,
verified and drafted per pass; got: tokens committed over tokens expected, of specfit by its
calibrated probabilities, and of that policy by the drafter's.
"""


def main() -> int:
    options = traces_parser(__doc__, OUTPUT).parse_args()
    return publish(options, OUTPUT, lambda: report(options.traces))


def report(folder: Path) -> str:
    """Replay everything and return the tables; say on stderr how far it is."""
    import torch

    torch.set_num_threads(1)
    begin = time.monotonic()
    parts = [HEAD]

    def add(title: str, found: dict[Cell, Outcome]) -> None:
        parts.append(f"{title}\n\n{summary(found, folder)}\n\n{table(found, folder)}\n")
        print(f"{title}: {time.monotonic() - begin:.0f} s so far", file=sys.stderr)

    add("True routing", {cell: chosen(cell, folder, starts=STARTS) for cell in cells()})
    three = [size for size in CACHES if size != "37.5%"]
    small = list(cells([SMALL], three))
    for predictor in (None, "frequency"):
        found = {cell: chosen(cell, folder, "specfit", predictor, STARTS) for cell in small}
        known = f"predictor {predictor}" if predictor else "true routing"
        add(f"The small model, {known}", found)
    with tempfile.TemporaryDirectory() as work:
        halves_of_it = learned_elsewhere(folder, Path(work))
        found = {cell: crossed(cell, halves_of_it) for cell in small}
    add("The small model, predictor learned, trained on the other half of the texts", found)
    return "\n\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
