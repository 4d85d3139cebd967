"""Count the misses of every cache policy over recorded traces, relative to Belady's optimum.

    python -m benchmarks.cache_policies [--traces FOLDER] [--public FOLDER]

First in the replay, then with the runtime's own cache on the shipped model. Counts only.

Fixed decoding policies choose the same passes whatever the cache does, so every cache policy meets
the same uses, and the fewest misses that they allow are known. What specfit chooses depends on what
is resident: there the figures are bytes per token relative to lru, not to an optimum. The traces
are optional material beside the checkout; the file is written whole or not at all.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from specfit_opt.caches import CACHE_RULES
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, example_trace
from specfit_opt.errors import SpecfitError
from specfit_opt.files import Trace, load_trace
from specfit_opt.files.atomic import atomic_write
from specfit_opt.replay import WARMUP, ReplayResult, replay

from .emulated_link import heldout_prompts

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT.parent / "shared" / "traces"
OUTPUT = ROOT / "benchmarks" / "results" / "cache_policies.txt"
SHARES = ("12.5%", "25%", "50%")
FIXED = ("ar", "chain-2", "chain-4", "eagle-8", "eagle-32")
CHOOSING = "specfit"
LIVE = ("ar", "chain-2", "eagle-8", "eagle-32")
N_TEXTS, NEW_TOKENS = 6, 64
RULES = [name for name, rule in CACHE_RULES.items() if not rule.clairvoyant]

#: Misses, or bytes per token, by (group of traces, cache policy, decoding policy, share): one
#: figure a trace.
Figures = dict[tuple[str, str, str, str], list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=TRACES / "simulated")
    parser.add_argument("--public", type=Path, default=TRACES / "public")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    try:
        groups = {
            "simulated": [load_trace(p) for p in sorted(options.traces.glob("*.npz"))],
            "recorded": [example_trace()],
            "texts": [text_of(path) for path in sorted(options.public.glob("*.npz"))],
        }
        for name, folder in (("simulated", options.traces), ("texts", options.public)):
            if not groups[name]:
                print(f"no traces in {folder}; name their folder", file=sys.stderr)
                return 2
        misses, per_token = run(groups)
        live = decoded()
    except SpecfitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = report(groups, misses, per_token, live)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output, "w") as handle:
        handle.write(text)
    print(text)
    return 0


def text_of(path: Path) -> Trace:
    """Return the routing of a text's tokens as a trace of single nodes: for plain decoding."""
    with np.load(path) as arrays:
        experts, n_experts = arrays["experts"], int(arrays["n_experts"])
        expert_bytes = arrays["expert_bytes"]
    n = len(experts)
    return Trace(
        cycle_start=np.arange(n + 1),
        prompt=np.zeros(n, dtype=np.int32),
        position=np.arange(n),
        parent=np.full(n, -1),
        token=np.zeros(n, dtype=np.int32),
        path_prob=np.ones(n, dtype=np.float32),
        depth=np.zeros(n, dtype=np.int16),
        accepted=np.ones(n, dtype=np.bool_),
        experts=experts,
        n_experts=n_experts,
        expert_bytes=expert_bytes,
        name=path.stem,
    )


def run(groups: dict[str, list[Trace]]) -> tuple[Figures, Figures]:
    """Return misses over Belady's for fixed policies, and bytes per token of specfit over lru's."""
    misses: Figures = {}
    per_token: Figures = {}
    begin = time.monotonic()
    for group, traces in groups.items():
        for trace in traces:
            fixed = FIXED if trace.max_depth else FIXED[:1]
            found = {name: replayed(trace, fixed, name) for name in [*RULES, "belady"]}
            for name in RULES:
                for r, least in zip(found[name], found["belady"], strict=True):
                    assert (r.policy, r.hits + r.misses) == (
                        least.policy,
                        least.hits + least.misses,
                    )
                    key = (group, name, r.policy, share_of(r))
                    misses.setdefault(key, []).append(r.misses / least.misses)
            if trace.max_depth:
                chosen = {name: replayed(trace, [CHOOSING], name) for name in RULES}
                for name in RULES:
                    for r, base in zip(chosen[name], chosen["lru"], strict=True):
                        key = (group, name, r.policy, share_of(r))
                        per_token.setdefault(key, []).append(
                            r.bytes_per_token / base.bytes_per_token
                        )
            print(f"{trace.name}: {time.monotonic() - begin:.0f} s so far", file=sys.stderr)
    return misses, per_token


def replayed(trace: Trace, policies: Sequence[str], cache_policy: str) -> list[ReplayResult]:
    return replay(
        trace,
        policies=policies,
        profile="pcie4",
        cache=SHARES,
        cache_policy=cache_policy,
        expert_bytes=EXAMPLE_EXPERT_BYTES if trace.expert_bytes is None else None,
    )


def share_of(result: ReplayResult) -> str:
    return f"{100 * result.cache_share:g}%"


def decoded() -> Figures:
    """Return the misses of decoding with the shipped model, one figure a text, by policy."""
    import torch
    from transformers import AutoTokenizer

    from specfit_runtime import SpecFit, demo_drafter, demo_model, load_offloaded, offload_of

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    found: Figures = {}
    for share in SHARES:
        for name in RULES:
            model = load_offloaded(
                demo_model(),
                expert_cache=share,
                store="ram",
                dtype="float32",
                cache_policy=name,
            )
            with offload_of(model):
                for policy in LIVE:
                    spec = SpecFit(f"eagle3:{demo_drafter()}", policy=policy)
                    for text in heldout_prompts()[:N_TEXTS]:
                        model.generate(
                            tokenizer(text, return_tensors="pt").input_ids,
                            max_new_tokens=NEW_TOKENS,
                            do_sample=False,
                            custom_generate=spec,
                        )
                        key = ("live", name, policy, share)
                        found.setdefault(key, []).append(spec.report.totals.misses)
            print(f"live: {name}, {share}", file=sys.stderr)
    return found


def report(
    groups: dict[str, list[Trace]], misses: Figures, per_token: Figures, live: Figures
) -> str:
    """Return all tables and what they mean as plain text."""
    titles = {
        "simulated": f"{len(groups['simulated'])} traces of real routing with simulated draft "
        "trees",
        "recorded": "the example trace: a small model's own draft trees with their true routing",
        "texts": f"{len(groups['texts'])} texts of real routing, token by token",
    }
    parts = [
        "$ python -m benchmarks.cache_policies\n"
        "Misses of the cache policies over those of Belady's optimum on the same passes, geometric "
        "mean over\n"
        "traces; 1 is the optimum. Columns: decoding policy and share of each layer's experts "
        "cached. Caches\n"
        f"start empty; the first {WARMUP} positions of a text are decoded plainly and not counted. "
        "The smallest\n"
        "figure of a column has a star."
    ]
    for group, title in titles.items():
        keys = [k for k in misses if k[0] == group]
        policies = dict.fromkeys(policy for _, _, policy, _ in keys)
        columns = [(policy, share) for policy in policies for share in SHARES]
        parts.append(f"{title}\n\n{table(misses, group, columns)}")
    columns = [(CHOOSING, share) for share in SHARES]
    parts.append(
        f"Bytes per token of {CHOOSING} on pcie4 over those with lru; its passes depend on the "
        "cache,\nso there is no common optimum.\n\n"
        + "\n\n".join(
            f"{titles[group]}\n\n{table(per_token, group, columns)}"
            for group in ("simulated", "recorded")
        )
    )
    over_lru = {
        (group, name, *column): [
            count / base for count, base in zip(counts, live[group, "lru", *column], strict=True)
        ]
        for (group, name, *column), counts in live.items()
    }
    parts.append(
        f"Misses of the runtime's own cache over those with lru: the shipped model, {N_TEXTS} "
        f"held-out texts of\n{NEW_TOKENS} new tokens, one after the other with one cache, prompts "
        "not counted.\n\n"
        + table(over_lru, "live", [(policy, share) for policy in LIVE for share in SHARES])
    )
    parts.append(
        "Over all columns above of fixed policies, by group: geometric mean, and the worst column "
        "against lru.\n\n" + overall(misses, list(titles))
    )
    return "\n\n\n".join(parts) + "\n"


def table(figures: Figures, group: str, columns: Sequence[tuple[str, str]]) -> str:
    """Return one row per cache policy, one column per decoding policy and share."""
    means = {
        (name, column): geometric_mean(figures[group, name, *column])
        for name in RULES
        for column in columns
    }
    best = {column: min(means[name, column] for name in RULES) for column in columns}
    rows = [
        ["", *(policy if share == SHARES[0] else "" for policy, share in columns)],
        ["", *(share for _, share in columns)],
    ]
    for name in RULES:
        row = [name]
        for column in columns:
            value = means[name, column]
            row.append(f"{value:.3f}{'*' if value == best[column] else ' '}")
        rows.append(row)
    return aligned(rows)


def overall(figures: Figures, groups: Sequence[str]) -> str:
    rows = [["", *(title for group in groups for title in (group, "worst"))]]
    for name in RULES:
        row = [name]
        for group in groups:
            columns = dict.fromkeys(k[2:] for k in figures if k[0] == group)
            own = [geometric_mean(figures[group, name, *c]) for c in columns]
            lru = [geometric_mean(figures[group, "lru", *c]) for c in columns]
            row.append(f"{geometric_mean(own):.3f}")
            row.append(f"{max(a / b for a, b in zip(own, lru, strict=True)):.3f}")
        rows.append(row)
    return aligned(rows)


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
