"""How soon text uses what rejected drafts bring in, on real branches and on simulated ones.

    python -m benchmarks.branch_reuse --recordings FOLDER [--traces FOLDER] [--write]

What a rejected node loaded is worth something if the text comes to use it. The simulated traces
decide that by the rule that gives rejected nodes their routing; here it is compared with the real
branches of `benchmarks.record_branches`. A minute on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace, load_trace
from specfit_opt.text import format_table

from .record_branches import DECODINGS, prompt_sets, record, recorded_sets
from .traces_command import TRACES, show

OUTPUT = Path(__file__).resolve().parent / "results" / "branch_reuse.txt"
#: An expert is taken for absent if the text did not use it in so many positions, and as reused if
#: it does in as many after.
RECENT, SOON = 16, 16
RULES = ("simulated", "simulated_past", "simulated_far")

HEAD = f"""\
$ python -m benchmarks.branch_reuse --recordings FOLDER --write

Of the experts of a layer that the text did not use in the last {RECENT} positions, how many it uses
in the next {SOON}: all of them, and those that rejected nodes of the first two levels use; gain:
the second over the first. same: share of a rejected node's experts that the accepted node of its
depth uses too; accepted: expanded nodes on the text's path of which a child was accepted; tokens:
what a pass over the whole pool commits.
"""


def figures(traces: Iterable[Trace]) -> list[str]:
    """Return the cells of a row, over all positions of some traces."""
    absent = used = drafted = reused = same = compared = 0.0
    trials = hits = nodes = cycles = 0
    for trace in traces:
        for first, end in trace.prompts:
            text = np.array([_union(trace, i, slice(0, 1)) for i in range(first, end)])
            for i in range(first, end):
                cycle = trace.cycle(i)
                depth = trace.depth[trace.cycle_start[i] : trace.cycle_start[i + 1]]
                nodes, cycles = nodes + int(cycle.accepted.sum()), cycles + 1
                parents = np.unique(cycle.tree.parent[1:])
                on_path = cycle.accepted[parents]
                trials += int(on_path.sum())
                hits += int(cycle.accepted[1:].sum())
                rejected = np.flatnonzero(~cycle.accepted & (depth <= 2))
                for level in (1, 2):
                    mine = rejected[depth[rejected] == level]
                    right = np.flatnonzero(cycle.accepted & (depth == level))
                    if len(mine) and len(right):
                        shared = _shared(cycle.experts[mine], cycle.experts[right[0]])
                        same, compared = same + shared.sum(), compared + shared.size
                at = i - first
                if at < RECENT or at + SOON >= end - first or not len(rejected):
                    continue
                gone = ~text[at - RECENT : at + 1].any(axis=0)
                soon = text[at + 1 : at + 1 + SOON].any(axis=0)
                wanted = _union(trace, i, rejected) & gone
                absent, used = absent + gone.sum(), used + (gone & soon).sum()
                drafted, reused = drafted + wanted.sum(), reused + (wanted & soon).sum()
    every, brought = used / absent, reused / drafted
    shares = (every, brought, same / compared, hits / trials)
    row = [f"{share:.3f}" for share in shares]
    return [*row[:2], f"{brought / every:.2f}", *row[2:], f"{nodes / cycles:.2f}"]


def _union(trace: Trace, at: int, nodes: slice | NDArray[np.intp]) -> NDArray[np.bool_]:
    return expert_union(trace.cycle(at).experts[nodes], trace.n_experts)


def _shared(experts: NDArray[np.integer], others: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which of the nodes' experts, shape (n, L, k), are among others, shape (L, k)."""
    found: NDArray[np.bool_] = (experts[:, :, :, None] == others[None, :, None, :]).any(axis=3)
    return found


def report(recordings: Path, folder: Path) -> str:
    """Return the table."""
    rows = [
        [
            "shipped model",
            f"real, {decoding}",
            *figures(recorded_sets(recordings, "judge", decoding)),
        ]
        for decoding in DECODINGS
    ]
    for rule in RULES:
        models: dict[str, list[Trace]] = {}
        for path in sorted((folder / rule).glob("*.npz")):
            models.setdefault(path.stem.rpartition("-s")[0], []).append(load_trace(path))
        rows += [[model, rule, *figures(own)] for model, own in models.items()]
    rows.sort()
    head = ["model", "branches", "all", "rejected", "gain", "same", "accepted", "tokens"]
    return f"{HEAD}\n{format_table(head, rows, left=['model', 'branches'])}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recordings", type=Path, required=True, help="folder of recordings")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the simulated ones")
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    record(options.recordings, prompt_sets("judge"))
    show(report(options.recordings, options.traces), OUTPUT, options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
