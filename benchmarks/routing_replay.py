"""Replay all policies over recorded traces beside the best fixed policy of each cell.

    python -m benchmarks.routing_replay [--traces FOLDER] [--jobs N] [--write]

A cell is a model, a machine, an expert size and a cache size. With true routing all traces are
replayed, the three simulations of a large model one after the other, as texts of one decode; with
predicted routing the small model's recording alone, whose layers stand for six each. The cache is
an LRU, as in the reference semantics of the trace format. specfit and the fixed policies are
replayed six times in each cell from nothing learned, beginning at other positions of the texts,
because a text is short and one pass may decide; the other policies once, and without a cache, too.
What policies do on the host is charged (`specfit_opt.profiles`). The traces are optional material
beside the checkout; ``--write`` replaces the file that the documentation shows.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files import Trace, load_trace
from specfit_opt.policies import ADAPTIVE_POLICIES, FIXED_POLICIES
from specfit_opt.replay import ReplayResult, replay
from specfit_opt.text import format_table

from .traces_command import SMALL_TRACE, in_processes, publish, traces_parser

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "routing_replay.txt"

PROFILES = ("pcie4", "nvme")
CACHES = ("12.5%", "25%", "37.5%", "50%")
#: Slots per layer where there is no cache.
NO_CACHE = "0"
#: Positions at the start of a text that stand for its prompt: of the trace format, and of the table
#: of cells.
ONE_START, STARTS = (12,), (8, 10, 12, 14, 16, 18)
#: What a pass is made of, and what a policy does on the host.
PARTS = ("compute", "draft", "transfer", "host")


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
class Machine:
    """A model on a machine, at one precision of its experts."""

    model: Model
    profile: str
    precision: str

    def __str__(self) -> str:
        return f"{self.model.name}, {self.profile}, {self.precision}"

    def cells(self, caches: Sequence[str] = CACHES) -> list[Cell]:
        """Return its cells."""
        return [Cell(self.model, self.profile, self.precision, size) for size in caches]


@dataclass(frozen=True)
class Cell:
    """One combination of what a user cannot choose."""

    model: Model
    profile: str
    precision: str
    cache: str

    def __str__(self) -> str:
        return f"{self.model.name}, {self.profile}, {self.precision}, {self.cache}"

    @property
    def machine(self) -> Machine:
        """What the cells of other cache sizes share with it."""
        return Machine(self.model, self.profile, self.precision)

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
    """What a policy came to in a cell, all texts and starts together.

    ``p50`` and ``p95`` are percentiles of the seconds per token, times tokens: their mean over the
    texts is what is shown.
    """

    tokens: int
    passes: int
    nodes: int
    levels: int
    predicted: float
    expected: float
    compute: float
    draft: float
    transfer: float
    host: float
    p50: float
    p95: float

    @classmethod
    def of(cls, results: Sequence[ReplayResult]) -> Outcome:
        return cls.sum(
            [
                cls(
                    tokens=r.tokens,
                    passes=r.passes,
                    nodes=r.nodes,
                    levels=r.levels,
                    predicted=r.predicted_tokens,
                    expected=r.expected_tokens,
                    compute=r.compute_seconds,
                    draft=r.draft_seconds,
                    transfer=r.transfer_seconds,
                    host=r.search_seconds + r.prediction_seconds + r.learning_seconds,
                    p50=r.p50_seconds * r.tokens,
                    p95=r.p95_seconds * r.tokens,
                )
                for r in results
            ]
        )

    @classmethod
    def sum(cls, parts: Sequence[Outcome]) -> Outcome:
        return cls(**{f.name: sum(getattr(part, f.name) for part in parts) for f in fields(cls)})

    @property
    def seconds(self) -> float:
        return math.fsum(getattr(self, part) for part in PARTS)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


#: By the names of policies.
Outcomes = dict[str, Outcome]


def cells(models: Iterable[Model] = MODELS, caches: Sequence[str] = CACHES) -> Iterator[Cell]:
    """Yield all cells."""
    for machine in machines(models):
        yield from machine.cells(caches)


def machines(models: Iterable[Model] = MODELS) -> Iterator[Machine]:
    """Yield all combinations of a model, a machine and a precision."""
    for model in models:
        for profile in PROFILES:
            for precision in model.expert_bytes:
                yield Machine(model, profile, precision)


@cache
def traces(model: Model, folder: Path) -> tuple[Trace, ...]:
    """Load the traces of a model."""
    return tuple(load_trace(folder / name) for name in model.files)


def replayed(
    own: Sequence[Cell],
    texts: Sequence[Trace],
    policies: Iterable[Any],
    predictor: str | None = None,
    starts: Sequence[int] = ONE_START,
) -> dict[Cell, Outcomes]:
    """Return what policies come to in cells of one machine: a decode of all texts per start.

    Chains that are longer than the recorded trees are deep are left out.
    """
    depth = min(trace.max_depth for trace in texts)
    able = [p for p in policies if not str(p).startswith("chain-") or int(p[6:]) <= depth]
    # All traces of a model have the same expert sizes.
    options = {**own[0].options(texts[0]), "cache": [cell.cache for cell in own]}
    if predictor is not None:
        from specfit_runtime.predictors import make_predictor

        options["predictor"] = lambda: make_predictor(predictor)
    found: dict[int, dict[str, list[ReplayResult]]] = {}
    for start in starts:
        for result in replay(texts, policies=able, warmup=start, **options):
            found.setdefault(result.slots, {}).setdefault(result.policy, []).append(result)
    return {
        cell: {policy: Outcome.of(results) for policy, results in by_policy.items()}
        for cell, by_policy in zip(own, found.values(), strict=True)
    }


@cache
def _fixed(machine: Machine, folder: Path) -> dict[Cell, Outcomes]:
    return replayed(machine.cells(), traces(machine.model, folder), FIXED_POLICIES)


def fixed(cell: Cell, folder: Path) -> Outcomes:
    """Return what each fixed policy comes to in a cell, from one start."""
    return _fixed(cell.machine, folder)[cell]


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """Return the texts of even and of odd number."""
    number = np.repeat(np.arange(len(trace.prompts)), [end - at for at, end in trace.prompts])
    return trace.select(number % 2 == 0), trace.select(number % 2 == 1)


def train(folder: Path, work: Path) -> None:
    """Train a predictor on each half of the small recording, for a replay of the other one."""
    from specfit_runtime.predictor_training import train_predictor
    from specfit_runtime.predictors.routing_network_files import save_network

    (trace,) = traces(SMALL, folder)
    for number, other in enumerate(reversed(halves(trace))):
        training = train_predictor([other], held_out=0.2)
        save_network(work / str(number), training.network, card="for a replay of the other texts")


def best_of(outcomes: Outcomes) -> str:
    """Return the fastest fixed policy."""
    able = [policy for policy in FIXED_POLICIES if policy in outcomes]
    return max(able, key=lambda policy: outcomes[policy].speed)


def run(job: tuple[Machine, Path, str]) -> dict[Cell, Outcomes]:
    """Replay the cells of a machine; the last part of a job says how."""
    import torch

    torch.set_num_threads(1)
    machine, folder, how = job
    texts, policies = traces(machine.model, folder), (*FIXED_POLICIES, *ADAPTIVE_POLICIES)
    if how == "policies":
        return replayed(machine.cells((NO_CACHE, *CACHES)), texts, policies)
    if how == "starts":
        both = (*FIXED_POLICIES, "specfit")
        return replayed(machine.cells(), texts, both, starts=STARTS)
    if how == "frequency":
        return replayed(machine.cells(SMALL_CACHES), texts, policies, how, STARTS)
    both = (*FIXED_POLICIES, "specfit")
    parts = [
        replayed(machine.cells(SMALL_CACHES), [own], both, f"learned:{how}/{number}", STARTS)
        for number, own in enumerate(halves(texts[0]))
    ]
    return {
        cell: {policy: Outcome.sum([part[cell][policy] for part in parts]) for policy in found}
        for cell, found in parts[0].items()
    }


#: Of the tables of the small model.
SMALL_CACHES = ("12.5%", "25%", "50%")


def table(found: dict[Cell, Outcomes]) -> str:
    """Return a row per cell, losers first."""
    rows = []
    for cell, outcomes in found.items():
        own, best = outcomes["specfit"], best_of(outcomes)
        ratio = own.speed / outcomes[best].speed
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
                    f"{own.speed / outcomes['ar'].speed:.3f}",
                    f"{own.tokens / own.passes:.2f}",
                    f"{own.nodes / own.passes:.1f}",
                    f"{own.levels / own.passes:.1f}",
                    f"{100.0 * own.host / own.seconds:.1f}%",
                    f"{own.tokens / own.expected:.3f}",
                    f"{outcomes[best].tokens / outcomes[best].predicted:.3f}",
                ],
            )
        )
    head = ["model", "machine", "experts", "cache", "x best", "best", "x ar", "tokens", "nodes"]
    head += ["levels", "host", "got", "best got"]
    left = ["model", "machine", "experts", "best"]
    return format_table(head, [row for _, row in sorted(rows)], left=left)


def summary(found: dict[Cell, Outcomes]) -> str:
    """Return the worst cells and the means."""
    ratios, plain = [], []
    for outcomes in found.values():
        own = outcomes["specfit"].speed
        ratios.append(own / outcomes[best_of(outcomes)].speed)
        plain.append(own / outcomes["ar"].speed)
    best, mean = best_single(found)
    under = sum(ratio < 0.99 for ratio in ratios)
    return (
        f"{len(ratios)} cells. Over the best fixed policy of each cell, chosen with hindsight: "
        f"least {min(ratios):.3f}, geometric mean {geometric_mean(ratios):.3f}, below 0.99 in "
        f"{under}.\nOver plain decoding: least {min(plain):.3f}, geometric mean "
        f"{geometric_mean(plain):.3f}. Over the best single fixed policy, {best}: geometric mean "
        f"{mean:.3f}."
    )


def best_single(found: dict[Cell, Outcomes]) -> tuple[str, float]:
    """Return the fixed policy that is hardest to beat in all cells, and specfit's mean over it.

    Where pools are not as deep as a chain is long, the longest possible chain stands in.
    """
    means = {}
    for policy in FIXED_POLICIES:
        ratios = []
        for outcomes in found.values():
            chains = [name for name in FIXED_POLICIES if name.startswith("chain-")]
            longest = [name for name in chains if name in outcomes][-1]
            other = outcomes.get(policy, outcomes[longest])
            ratios.append(outcomes["specfit"].speed / other.speed)
        means[policy] = geometric_mean(ratios)
    best = min(means, key=lambda policy: means[policy])
    return best, means[best]


def policies_table(found: dict[Cell, Outcomes]) -> str:
    """Return a row per policy, losers first: over all cells with a cache, and by cache size."""
    cached = {cell: outcomes for cell, outcomes in found.items() if cell.cache != NO_CACHE}
    sizes = list(dict.fromkeys(cell.cache for cell in found))
    rows = []
    for policy in dict.fromkeys(name for outcomes in found.values() for name in outcomes):
        own = {cell: outcomes[policy] for cell, outcomes in cached.items() if policy in outcomes}
        best = [o.speed / cached[cell][best_of(cached[cell])].speed for cell, o in own.items()]
        plain = [(o, cached[cell]["ar"]) for cell, o in own.items()]
        row = [policy, f"{geometric_mean(best):.3f}", f"{min(best):.3f}"]
        over = [o.speed / ar.speed for o, ar in plain]
        row += [f"{geometric_mean(over):.3f}", f"{min(over):.3f}"]
        for name in ("p50", "p95"):
            times = [getattr(o, name) / o.tokens / getattr(ar, name) * ar.tokens for o, ar in plain]
            row.append(f"{geometric_mean(times):.3f}")
        total = Outcome.sum(list(own.values()))
        row.append(f"{100.0 * total.host / total.seconds:.1f}%")
        for size in sizes:
            here = [o for cell, o in found.items() if cell.cache == size and policy in o]
            row.append(f"{geometric_mean([o[policy].speed / o['ar'].speed for o in here]):.3f}")
        rows.append((geometric_mean(best), row))
    head = ["policy", "x best", "worst", "x ar", "worst", "p50", "p95", "host"]
    head += ["no cache" if size == NO_CACHE else size for size in sizes]
    return format_table(head, [row for _, row in sorted(rows)])


_LENGTHS = f"{', '.join(map(str, STARTS[:-1]))} or {STARTS[-1]}"
HEAD = f"""\
$ python -m benchmarks.routing_replay --write

What policies do on the host is charged. x best, x ar: tokens per second relative to the best fixed
policy of the cell, which only hindsight knows, and to plain decoding. By cell, specfit, each six
times from nothing learned, the first {_LENGTHS} positions of a text standing
for its prompt. tokens, nodes, levels: committed, verified and drafted per pass; host: share of the
time for searching, predicting and learning; got: tokens committed over tokens expected, of specfit
by its calibrated probabilities, and of that policy by the drafter's. By policy, geometric mean and
worst cell; p50, p95: median and 95th percentile of the time per token, over those of plain
decoding; by cache size: x ar.
"""


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    return publish(options, OUTPUT, lambda: report(options.traces, options.jobs))


def report(folder: Path, processes: int = 1) -> str:
    """Replay everything and return the tables; say on stderr how far it is."""
    parts = [HEAD]

    def found(own: Iterable[Machine], how: str) -> dict[Cell, Outcomes]:
        jobs = [(machine, folder, how) for machine in own]
        every = in_processes(run, jobs, processes, lambda cells: f"{how}, {len(cells)} cells")
        return {cell: outcomes for part in every for cell, outcomes in part.items()}

    def add(title: str, by_cell: dict[Cell, Outcomes], policies: dict[Cell, Outcomes]) -> None:
        parts.append(f"{title}\n\n{summary(by_cell)}\n\n{table(by_cell)}\n")
        if policies:
            parts.append(f"{title}, by policy\n\n{policies_table(policies)}\n")

    add("True routing", found(machines(), "starts"), found(machines(), "policies"))
    by_frequency = found(machines([SMALL]), "frequency")
    add("The small model, predictor frequency", by_frequency, by_frequency)
    with tempfile.TemporaryDirectory() as work:
        train(folder, Path(work))
        title = "The small model, predictor learned, trained on the other half of the texts"
        add(title, found(machines([SMALL]), work), {})
    return "\n\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
