"""Replay specfit beside the best fixed policy over draft trees drawn afresh.

    python -m benchmarks.redrawn_drafts [--traces FOLDER] [--sets N] [--jobs N] [--write]

The draft trees of the large models' traces are simulated over one recorded text each, three times.
What is accepted is so decided by a few hundred draws, and which fixed policy is best by the same.
Here the trees are drawn again over the same routing, a set of three at a time, to tell what is a
policy's from what is chance. The traces are optional material beside the checkout; ``--write``
replaces the file that the documentation shows. Six minutes on one core.

A tree is drawn as those of the traces are: each expanded node has the probabilities of a group of
siblings of the traces, the same group for a position of the text in all cycles, and the most
probable nodes of a level are expanded. The text's own token is child i with the probability of
child i, and none with what these leave over. A rejected node has the routing of a random position
of the text near its root.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specfit_opt.files import Trace
from specfit_opt.text import format_table

from .routing_replay import (
    FIXED,
    MODELS,
    SMALL,
    Cell,
    Outcome,
    best_of,
    cells,
    chosen_over,
    replayed,
    traces,
)
from .traces_command import in_processes, publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "redrawn_drafts.txt"
#: How far from its root, in positions, a rejected node takes its routing from, as in the traces.
NEAR = 39
#: Groups below a less likely parent have lost digits to rounding.
_LEAST_PARENT = 1e-3

LARGE = tuple(model for model in MODELS if model is not SMALL)


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

    def draw(self, random: np.random.Generator) -> Trace:
        """Draw the draft trees of a decode of the text."""
        n, width = len(self.experts), self.groups.shape[1]
        own = self.groups[random.integers(len(self.groups), size=n)]
        # The child that the text takes at each position; width: none of them.
        taken = (random.random(n)[:, None] > np.cumsum(own, axis=1)).sum(axis=1)
        taken[-1] = width  # the text ends there
        trees = [self._tree(int(root), own, taken, random) for root in self.roots]
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
    ) -> tuple[NDArray[np.generic], ...]:
        """Return parents, positions, path probabilities, depths and acceptance of a cycle."""
        width = own.shape[1]
        low, high = max(root - NEAR, int(self.roots[0])), min(root + NEAR, len(self.experts) - 1)
        parent, token, prob = [-1], [root], [1.0]
        depth, accepted = [0], [True]
        front = [0]
        for level in range(1, self.levels + 1):
            first = len(parent)
            for node in front:
                group = self.groups[random.integers(len(self.groups))]
                if accepted[node]:
                    group = own[token[node]]
                near = random.integers(low, high, size=width, endpoint=True)
                for rank in range(width):
                    hit = accepted[node] and int(taken[token[node]]) == rank
                    parent.append(node)
                    token.append(token[node] + 1 if hit else int(near[rank]))
                    prob.append(prob[node] * float(group[rank]))
                    depth.append(level)
                    accepted.append(hit)
            new = np.array(prob[first:])
            best = np.argsort(-new, kind="stable")[: self.expanded]
            front = [first + int(i) for i in np.sort(best)]
        return tuple(map(np.array, (parent, token, prob, depth, accepted)))


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
    """A cell over all sets: specfit and each fixed policy, set by set."""

    cell: Cell
    own: tuple[Outcome, ...]
    others: tuple[dict[str, Outcome], ...]

    @property
    def pooled(self) -> tuple[float, str]:
        """Over the policy that is the best over all sets, and which that is."""
        others = {policy: Outcome.sum([o[policy] for o in self.others]) for policy in FIXED}
        best = best_of(others)
        return Outcome.sum(self.own).speed / others[best].speed, best

    @property
    def by_set(self) -> list[float]:
        """Over the best policy of each set."""
        pairs = zip(self.own, self.others, strict=True)
        return [own.speed / others[best_of(others)].speed for own, others in pairs]


@lru_cache(maxsize=1)
def drawn(name: str, folder: Path, n_sets: int) -> list[list[Trace]]:
    """Draw sets of texts of a model: the same in all of its cells, which come one after another."""
    number = [model.name for model in LARGE].index(name)
    given = traces(LARGE[number], folder)
    text = Text.of(given)
    return [
        [text.draw(np.random.default_rng((number, a_set, one))) for one in range(len(given))]
        for a_set in range(n_sets)
    ]


def run(job: tuple[Cell, Path, int]) -> Result:
    """Replay a cell over ``job[2]`` sets."""
    import torch

    torch.set_num_threads(1)
    cell, folder, n_sets = job
    sets = drawn(cell.model.name, folder, n_sets)
    own = [chosen_over(cell, a_set) for a_set in sets]
    others = [replayed(cell, a_set) for a_set in sets]
    return Result(cell, tuple(own), tuple(others))


def report(results: Sequence[Result], n_sets: int) -> str:
    """Return the table, losers first."""
    rows = []
    for result in sorted(results, key=lambda r: r.pooled[0]):
        cell, ratios = result.cell, result.by_set
        pooled, best = result.pooled
        own = Outcome.sum(result.own)
        rows.append(
            [
                cell.model.name,
                cell.profile,
                cell.precision,
                cell.cache,
                f"{pooled:.3f}",
                best,
                f"{statistics.geometric_mean(ratios):.3f}",
                f"{min(ratios):.3f}",
                f"{max(ratios):.3f}",
                f"{statistics.stdev(map(math.log, ratios)):.3f}" if n_sets > 1 else "-",
                f"{own.tokens / own.expected:.3f}",
            ]
        )
    head = ["model", "machine", "experts", "cache", "all sets", "best", "by set", "least", "most"]
    head += ["sd", "got"]
    table = format_table(head, rows, left=["model", "machine", "experts", "best"])
    pooled_ratios = [result.pooled[0] for result in results]
    single = [ratio for result in results for ratio in result.by_set]
    return f"""\
$ python -m benchmarks.redrawn_drafts --write

{n_sets} sets of three texts in {len(results)} cells; true routing; each set from nothing learned.
all sets: tokens per second over all sets, relative to the fixed policy that is best over all sets;
by set, least, most, sd: relative to the best fixed policy of each set, geometric mean over sets,
least, most and standard deviation of the logarithm; got: tokens committed over tokens that specfit
expected.

Over all sets: least {min(pooled_ratios):.3f}, geometric mean \
{statistics.geometric_mean(pooled_ratios):.3f}, below 0.99 in \
{sum(r < 0.99 for r in pooled_ratios)} of {len(results)} cells.
By set: geometric mean {statistics.geometric_mean(single):.3f}, below 0.99 in \
{sum(r < 0.99 for r in single)} of {len(single)} cells and sets.

{table}
"""


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--sets", type=int, default=8, help="sets of three texts; default 8")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.sets < 1 or options.jobs < 1:
        parser.error("--sets and --jobs must be at least 1")
    jobs = [(cell, options.traces, options.sets) for cell in cells(LARGE)]

    def measured() -> str:
        results = in_processes(run, jobs, options.jobs, lambda result: f"{result.pooled[0]:.3f}")
        return report(results, options.sets)

    return publish(options, OUTPUT, measured)


if __name__ == "__main__":
    raise SystemExit(main())
