"""Say whether specfit holds what it has to, everything charged, on several kinds of draft trees.

    python -m benchmarks.verdicts [KIND]... [--traces FOLDER] [--sets N] [--jobs N] [--keep FILE]
                                  [--write]

In each cell, over all sets together: at least 0.97 of the fixed policy that is best in hindsight,
and at least 0.99 of plain decoding. Over the cells of a kind: a geometric mean of at least 1.05
over the single fixed policy that is hardest to beat. Cells that miss come first, each with the part
of a pass in which the time is lost.

A kind is ``simulated``, ``simulated_past`` or ``simulated_far``, with known routing, or a folder of
recordings by ``specfit trace``, with routing predicted by what each token used before. The draft
trees of the large models' traces are simulated over one recorded text each, three times, so that a
few hundred draws decide what is accepted; here they are drawn again over the same routing, a set of
three at a time, to tell what is a policy's from what is chance. Of recordings, a set is every N-th
text. Each set is decoded from nothing learned. The traces are optional material beside the
checkout; ``--keep`` notes each finished machine in a file and takes from it what is there;
``--write`` replaces the file that the documentation shows.

A tree is drawn as those of the traces are: each expanded node has the probabilities of a group of
siblings of the traces, the same group for a position of the text in all cycles, and the most
probable nodes of a level are expanded. The text's own token is child i with the probability of
child i, and none with what these leave over. A rejected node has the routing of a random position
of the text near its root, of the root or one of the last positions before it, or of one that is far
from its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray

from specfit_opt.files import Trace, load_trace
from specfit_opt.policies import FIXED_POLICIES
from specfit_opt.text import format_table

from .routing_replay import (
    MODELS,
    PARTS,
    SMALL,
    Cell,
    Machine,
    Model,
    Outcome,
    Outcomes,
    best_of,
    best_single,
    machines,
    replayed,
)
from .traces_command import in_processes, publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "verdicts.txt"
#: What has to be held: in every cell of the best fixed policy and of plain decoding, and on the
#: mean of the single fixed policy that is hardest to beat.
OF_BEST, OF_PLAIN, OF_SINGLE = 0.97, 0.99, 1.05
#: How far from its root, in positions, a rejected node takes its routing from, as in the traces.
NEAR = 39
PAST = "simulated_past"
#: The rules by which rejected nodes get their routing: folders of traces.
RULES = ("simulated", PAST, "simulated_far")
#: Layers of the model that recorded ones stand for.
LAYERS = 48
#: Groups below a less likely parent have lost digits to rounding.
_LEAST_PARENT = 1e-3


@dataclass(frozen=True, eq=False)
class Text:
    """What the simulated traces of a model tell of its text, and of a drafter.

    Attributes
    ----------
    roots : ndarray of int64, shape (C,)
        Position of each cycle's root.
    experts : ndarray of int16, shape (T, L, k)
        True routing by position; positions before the first root are not known and not used.
    groups : ndarray of float64, shape (g, w)
        Probabilities of siblings given their parent, most probable first.
    expanded, levels : int
        Nodes expanded per level, and levels below the root.
    n_experts : int
    expert_bytes : ndarray of int64, shape (L,), or None
    """

    roots: NDArray[np.int64]
    experts: NDArray[np.int16]
    groups: NDArray[np.float64]
    expanded: int
    levels: int
    n_experts: int
    expert_bytes: NDArray[np.int64] | None

    @classmethod
    def of(cls, own: Sequence[Trace]) -> Text:
        """Read a model's traces."""
        first = own[0]
        roots = first.token[first.cycle_start[:-1]].astype(np.int64)
        experts = np.zeros((int(first.token.max()) + 1, *first.experts.shape[1:]), dtype=np.int16)
        experts[first.token] = first.experts
        groups = np.concatenate([_groups(trace) for trace in own])
        levels = int(first.depth.max())
        deepest = np.count_nonzero(first.depth[: first.cycle_start[1]] == levels)
        return cls(
            roots=roots,
            experts=experts,
            groups=groups,
            expanded=deepest // groups.shape[1],
            levels=levels,
            n_experts=first.n_experts,
            expert_bytes=first.expert_bytes,
        )

    def draw(self, random: np.random.Generator, rule: str = "simulated") -> Trace:
        """Draw the draft trees of a decode of the text; ``rule`` is one of :data:`RULES`."""
        n, width = len(self.experts), self.groups.shape[1]
        own = self.groups[random.integers(len(self.groups), size=n)]
        # The child that the text takes at each position; width: none of them.
        taken = (random.random(n)[:, None] > np.cumsum(own, axis=1)).sum(axis=1)
        taken[-1] = width  # the text ends there
        trees = [self._tree(int(root), own, taken, random, rule) for root in self.roots]
        parent, token, prob, depth, accepted = map(np.concatenate, zip(*trees, strict=True))
        n_cycles = len(self.roots)
        return Trace(
            cycle_start=np.cumsum([0, *(len(tree[0]) for tree in trees)]),
            prompt=np.zeros(n_cycles, dtype=np.int32),
            position=np.arange(n_cycles, dtype=np.int32),
            parent=parent.astype(np.int32),
            token=token.astype(np.int32),
            path_prob=prob.astype(np.float32),
            depth=depth.astype(np.int16),
            accepted=accepted,
            experts=self.experts[token],
            n_experts=self.n_experts,
            expert_bytes=self.expert_bytes,
        )

    def _tree(
        self,
        root: int,
        own: NDArray[np.float64],
        taken: NDArray[np.int64],
        random: np.random.Generator,
        rule: str,
    ) -> tuple[NDArray[np.generic], ...]:
        """Return parents, positions, path probabilities, depths and acceptance of a cycle."""
        width = own.shape[1]
        parent, token, prob = [-1], [root], [1.0]
        depth, accepted = [0], [True]
        front = [0]
        for level in range(1, self.levels + 1):
            first = len(parent)
            places = self._places(rule, root, root + level)
            for node in front:
                group = self.groups[random.integers(len(self.groups))]
                if accepted[node]:
                    group = own[token[node]]
                place = places[random.integers(len(places), size=width)]
                for rank in range(width):
                    hit = accepted[node] and int(taken[token[node]]) == rank
                    parent.append(node)
                    token.append(token[node] + 1 if hit else int(place[rank]))
                    prob.append(prob[node] * float(group[rank]))
                    depth.append(level)
                    accepted.append(hit)
            new = np.array(prob[first:])
            best = np.argsort(-new, kind="stable")[: self.expanded]
            front = [first + int(i) for i in np.sort(best)]
        return tuple(map(np.array, (parent, token, prob, depth, accepted)))

    def _places(self, rule: str, root: int, position: int) -> NDArray[np.int64]:
        """Return the positions whose routing a rejected node at ``position`` may have."""
        known = np.arange(int(self.roots[0]), len(self.experts))
        if rule == "simulated_far":
            return known[np.abs(known - position) > NEAR]
        return known[(known >= root - NEAR) & (known <= (root if rule == PAST else root + NEAR))]


def _groups(trace: Trace) -> NDArray[np.float64]:
    """Return the probabilities of the children of rejected nodes, given these.

    Those of accepted ones are the same in many cycles, so they would count many times.
    """
    start = np.repeat(trace.cycle_start[:-1], np.diff(trace.cycle_start))
    child = np.flatnonzero(trace.parent >= 0)
    parent = (trace.parent + start)[child]
    width = int(np.bincount(parent).max())
    parents = parent.reshape(-1, width)
    assert (parents == parents[:, :1]).all()  # siblings stand together, as many everywhere
    above = trace.path_prob[parents].astype(np.float64)
    usable = ~trace.accepted[parents[:, 0]] & (above[:, 0] > _LEAST_PARENT)
    given = trace.path_prob[child].astype(np.float64).reshape(-1, width)[usable] / above[usable]
    # Rounding may take siblings above 1.
    groups: NDArray[np.float64] = given / np.maximum(given.sum(axis=1, keepdims=True), 1.0)
    return groups


@dataclass(frozen=True)
class Result:
    """A cell over all sets: what each policy came to, set by set."""

    cell: Cell
    sets: tuple[Outcomes, ...]

    @property
    def together(self) -> Outcomes:
        """What each policy came to over all sets."""
        return {policy: Outcome.sum([s[policy] for s in self.sets]) for policy in self.sets[0]}

    @property
    def by_set(self) -> list[float]:
        """Over the best policy of each set."""
        return [s["specfit"].speed / s[best_of(s)].speed for s in self.sets]

    @property
    def of_best(self) -> float:
        """Over the policy that is the best over all sets."""
        found = self.together
        return found["specfit"].speed / found[best_of(found)].speed

    @property
    def of_plain(self) -> float:
        """Over plain decoding."""
        found = self.together
        return found["specfit"].speed / found["ar"].speed

    @property
    def held(self) -> bool:
        """Whether the cell holds what it has to."""
        return self.of_best >= OF_BEST and self.of_plain >= OF_PLAIN

    @property
    def lost(self) -> dict[str, float]:
        """By part: what a token takes beyond the policy that is lost against, over its time."""
        found = self.together
        against = "ar" if self.of_best >= OF_BEST and self.of_plain < OF_PLAIN else best_of(found)
        own, other = found["specfit"], found[against]
        return {
            part: (getattr(own, part) / own.tokens - getattr(other, part) / other.tokens)
            / (other.seconds / other.tokens)
            for part in PARTS
        }


def model_of(kind: str, name: str, folder: Path) -> Model:
    """Return a model of the traces of a kind, its files by their own folder."""
    if kind not in RULES:
        files = tuple(sorted(str(path) for path in folder.glob("*.npz")))
        layers = load_trace(files[0]).n_layers
        return Model(name, files, SMALL.expert_bytes, max(1, round(LAYERS / layers)))
    (known,) = [model for model in MODELS if model.name == name]
    files = tuple(str(path) for path in sorted(folder.glob(f"{name}-s*.npz")))
    return Model(name, files, known.expert_bytes)


def machines_of(kind: str, folder: Path) -> list[Machine]:
    """Return the machines that a kind is replayed on; models without traces are left out."""
    if kind not in RULES:
        return list(machines([model_of(kind, folder.name, folder)]))
    models = [model_of(kind, model.name, folder) for model in MODELS if model is not SMALL]
    return list(machines([model for model in models if model.files]))


@lru_cache(maxsize=1)
def sets_of(kind: str, files: tuple[str, ...], n_sets: int) -> list[list[Trace]]:
    """Return the sets of texts: the same in all cells of a model."""
    given = [load_trace(name) for name in files]
    if kind not in RULES:
        return recorded_sets(given, n_sets)
    text = Text.of(given)
    number = [Path(files[0]).name.startswith(model.name) for model in MODELS].index(True)
    return [
        [text.draw(np.random.default_rng((number, a_set, one)), kind) for one in range(len(given))]
        for a_set in range(n_sets)
    ]


def recorded_sets(given: Sequence[Trace], n_sets: int) -> list[list[Trace]]:
    """Deal the texts of recordings out to sets."""
    sets: list[list[Trace]] = [[] for _ in range(n_sets)]
    dealt = 0
    for trace in given:
        lengths = [end - first for first, end in trace.prompts]
        to = np.repeat(np.arange(dealt, dealt + len(lengths)) % n_sets, lengths)
        dealt += len(lengths)
        for number in np.unique(to):
            sets[number].append(trace.select(to == number))
    if dealt < n_sets:
        raise SystemExit(f"{dealt} recorded texts are too few for {n_sets} sets; give --sets")
    return sets


def run(job: tuple[Machine, str, int]) -> list[Result]:
    """Replay the cells of a machine over ``job[2]`` sets."""
    import torch

    torch.set_num_threads(1)
    machine, kind, n_sets = job
    own = machine.cells()
    predictor = None if kind in RULES else "frequency"
    policies = (*FIXED_POLICIES, "specfit")
    found = [
        replayed(own, texts, policies, predictor)
        for texts in sets_of(kind, machine.model.files, n_sets)
    ]
    return [Result(cell, tuple(by_cell[cell] for by_cell in found)) for cell in own]


class Kept:
    """Results by kind and machine, in a file of JSON lines if there is to be one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, list[list[dict[str, dict[str, float]]]]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                key, cells = json.loads(line)
                self._found[key] = cells

    def get(self, job: tuple[Machine, str, int]) -> list[Result] | None:
        """Return the results of a job that was run before."""
        found = self._found.get(self._key(job))
        if found is None:
            return None
        return [
            Result(
                cell,
                tuple({name: Outcome(**o) for name, o in one.items()} for one in sets),  # type: ignore[arg-type]
            )
            for cell, sets in zip(job[0].cells(), found, strict=True)
        ]

    def put(self, job: tuple[Machine, str, int], results: list[Result]) -> None:
        """Note the results of a job."""
        cells = [
            [{name: asdict(outcome) for name, outcome in one.items()} for one in result.sets]
            for result in results
        ]
        self._found[self._key(job)] = cells
        if self._path is None:
            return
        with self._path.open("a") as handle:
            handle.write(json.dumps([self._key(job), cells]) + "\n")

    @staticmethod
    def _key(job: tuple[Machine, str, int]) -> str:
        machine, kind, n_sets = job
        return f"{kind}, {machine}, {n_sets} sets"


def section(kind: str, results: Sequence[Result], n_sets: int) -> str:
    """Return the verdicts on a kind and its table: cells that miss first, then losers."""
    missed = [result for result in results if not result.held]
    single, mean = best_single({result.cell: result.together for result in results})
    best = [result.of_best for result in results]
    plain = [result.of_plain for result in results]
    verdicts = [
        ("of the best fixed policy, each cell", OF_BEST, min(best)),
        ("of plain decoding, each cell", OF_PLAIN, min(plain)),
        (f"of the best single fixed policy ({single}), mean", OF_SINGLE, mean),
    ]
    said = "\n".join(
        f"{'held' if got >= wanted else 'MISSED'}: at least {wanted} {what}: {got:.3f}"
        for what, wanted, got in verdicts
    )
    routing = "known routing" if kind in RULES else "predictor frequency"
    order = sorted(results, key=lambda r: (r.held, min(r.of_best / OF_BEST, r.of_plain / OF_PLAIN)))
    left = ["model", "machine", "experts", "best", "cause"]
    head = ["model", "machine", "experts", "cache", "x best", "best", "x ar", "least", "most"]
    table = format_table([*head, *PARTS, "cause"], [row(r) for r in order], left=left)
    return (
        f"{Path(kind).name}: {n_sets} sets, {routing}, {len(results)} cells, {len(missed)} missed; "
        f"mean of the best {geometric_mean(best):.3f}\n\n{said}\n\n{table}\n"
    )


def row(result: Result) -> list[str]:
    """Return the row of a cell."""
    cell, lost = result.cell, result.lost
    return [
        cell.model.name,
        cell.profile,
        cell.precision,
        cell.cache,
        f"{result.of_best:.3f}",
        best_of(result.together),
        f"{result.of_plain:.3f}",
        f"{min(result.by_set):.3f}",
        f"{max(result.by_set):.3f}",
        *(f"{100.0 * share:+.1f}" for share in lost.values()),
        "-" if result.held else max(lost, key=lambda part: lost[part]),
    ]


HEAD = """\
$ python -m benchmarks.verdicts {arguments}--write

Everything is charged, and each set is decoded from nothing learned. x best: tokens per second of
specfit over all sets, relative to the fixed policy that is best over all sets; x ar: to plain
decoding; least, most: by set, relative to the best of the set. compute, draft, transfer, host: what
a token takes in the passes, in drafting, in loads and in searching, predicting and learning beyond
what it takes with that policy (with plain decoding where only that is missed), in percent of the
whole time with it; cause: of a cell that misses, the part with the most.
"""


def main() -> int:
    options = arguments()
    kept = Kept(options.keep)
    kinds = options.kinds or list(RULES)

    def folder(kind: str) -> Path:
        return options.traces / kind if kind in RULES else Path(kind)

    def measured() -> str:
        said = "".join(f"{Path(kind).name} " for kind in options.kinds)
        said += f"--sets {options.sets} " if options.sets != SETS else ""
        parts = [HEAD.format(arguments=said)]
        for kind in kinds:
            jobs = [(machine, kind, options.sets) for machine in machines_of(kind, folder(kind))]
            if not jobs:
                raise SystemExit(f"no traces in {folder(kind)}")
            new = [job for job in jobs if kept.get(job) is None]
            in_processes(run, new, options.jobs, figure, kept.put)
            found = [result for job in jobs for result in kept.get(job) or ()]
            parts.append(section(kind, found, options.sets))
        return "\n\n".join(parts)

    return publish(options, OUTPUT, measured)


#: Sets of texts, unless told otherwise.
SETS = 8


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument(
        "kinds", nargs="*", metavar="KIND", help=f"{', '.join(RULES)} or a folder of recordings"
    )
    parser.add_argument("--sets", type=int, default=SETS, help=f"sets of texts; default {SETS}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="file that keeps what is finished")
    options = parser.parse_args()
    if options.sets < 1 or options.jobs < 1:
        parser.error("--sets and --jobs must be at least 1")
    return options


def figure(results: Sequence[Result]) -> str:
    """Return what is said on stderr of a machine."""
    return " ".join(f"{result.of_best:.3f}" for result in results)


if __name__ == "__main__":
    raise SystemExit(main())
