"""Decode held-out texts in fresh processes, each from nothing learned, and with kept state.

    python -m benchmarks.first_text [--expert-cache X]... [--prompts N] [--repeats N] [--write]

Every text of every policy has a process of its own, the shipped model's experts on disk (in the
page cache after the first) and no emulated link. ``specfit kept`` begins with what earlier texts
left in a folder of state, four demo texts, which are not among the held-out ones. The policies take
turns prompt by prompt, another one first each time. Seconds are of decoding alone, the prefill
excluded; ``whole`` counts the call of ``generate`` with the prefill and what specfit measures
before its first text. What was measured is kept in a file beside the table, so that a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

from .emulated_link import heldout_prompts

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "first_text.txt"
POLICIES = ("ar", "chain-2", "chain-3", "specfit", "specfit kept")
#: What is measured of a text.
Measured = dict[str, float]

HEAD = """\
$ python -m benchmarks.first_text --write

Speed relative to ar, which has processes of its own too: decoding alone, of all prompts together,
the least and the greatest of one prompt (medians of the repeats), and over chain-2; whole: the call
of generate, with the prefill and what is measured beforehand. Float32, one thread.
"""


def one_text(policy: str, expert_cache: float, prompt: str, new_tokens: int) -> Measured:
    """Decode one text in this process, and return what it took."""
    from time import perf_counter

    import torch
    from transformers import AutoTokenizer

    from specfit_runtime import SpecFit, demo_drafter, demo_model, load_offloaded, offload_of

    torch.set_num_threads(1)
    name, _, kept = policy.partition(" ")
    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    model = load_offloaded(demo_model(), expert_cache=expert_cache, dtype="float32")
    spec = SpecFit(
        None if name == "ar" else f"eagle3:{demo_drafter()}", policy=name, state=bool(kept)
    )
    begin = perf_counter()
    with offload_of(model):
        model.generate(
            tokenizer(prompt, return_tensors="pt").input_ids,
            max_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            custom_generate=spec,
        )
    whole = perf_counter() - begin
    totals = spec.report.totals
    return {
        "seconds": totals.seconds,
        "whole": whole,
        "passes": len(spec.report.cycles),
        "levels": sum(cycle.levels for cycle in spec.report.cycles),
        "verified": sum(cycle.verified for cycle in spec.report.cycles),
    }


def in_a_process(
    policy: str, expert_cache: float, prompt: str, new_tokens: int, state: str
) -> Measured:
    """Return what `one_text` does in a process of its own."""
    job = json.dumps([policy, expert_cache, prompt, new_tokens])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_text", "--one", job],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": state, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    expert_cache: float, prompts: Sequence[str], repeats: int, new_tokens: int, done: Path
) -> dict[str, list[list[Measured]]]:
    """Return what every policy took, by prompt and repeat."""
    from specfit_runtime.demo_files import demo_prompts

    found: dict[str, Measured] = json.loads(done.read_text()) if done.exists() else {}
    with tempfile.TemporaryDirectory() as state:
        taught = False
        for repeat in range(repeats):
            for i, prompt in enumerate(prompts):
                turn = (i + repeat) % len(POLICIES)
                for policy in (*POLICIES[turn:], *POLICIES[:turn]):
                    key = f"{expert_cache} {policy} {i} {repeat} {new_tokens}"
                    if key in found:
                        continue
                    if policy.endswith("kept") and not taught:
                        taught = True
                        for text in demo_prompts():
                            in_a_process(policy, expert_cache, text, new_tokens, state)
                    found[key] = in_a_process(policy, expert_cache, prompt, new_tokens, state)
                    with atomic_write(done, "w") as handle:
                        json.dump(found, handle)
                print(f"{expert_cache:.1%}: {i + 1} of {len(prompts)}", file=sys.stderr)
    return {
        policy: [
            [found[f"{expert_cache} {policy} {i} {r} {new_tokens}"] for r in range(repeats)]
            for i in range(len(prompts))
        ]
        for policy in POLICIES
    }


def table(found: dict[str, list[list[Measured]]]) -> str:
    """Return a row for each policy, those that lose first."""

    def middle(policy: str, what: str) -> list[float]:
        return [median(run[what] for run in runs) for runs in found[policy]]

    rows: list[tuple[float, list[Any]]] = []
    plain, chain = middle("ar", "seconds"), middle("chain-2", "seconds")
    for policy in found:
        own = middle(policy, "seconds")
        ratios = [a / b for a, b in zip(plain, own, strict=True)]
        total = math.fsum(plain) / math.fsum(own)
        figures = (
            total,
            min(ratios),
            max(ratios),
            math.fsum(chain) / math.fsum(own),
            math.fsum(middle("ar", "whole")) / math.fsum(middle(policy, "whole")),
        )
        counts = (math.fsum(middle(policy, w)) / len(own) for w in ("passes", "levels", "verified"))
        row = [policy, *(f"{f:.3f}" for f in figures), *(f"{c:.1f}" for c in counts)]
        rows.append((total, row))
    head = ["policy", "speed", "least", "most", "x chain-2", "whole", "passes", "levels", "nodes"]
    return format_table(head, [row for _, row in sorted(rows, key=lambda r: r[0])], left=["policy"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--expert-cache", type=float, action="append", help="0.125, 0.25, 0.5")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--done", type=Path, default=Path("first_text.json"), help="what was done")
    parser.add_argument("--write", action="store_true", help=f"replace {OUTPUT.name}")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_text(*json.loads(options.one))))
        return 0
    prompts = heldout_prompts()[: options.prompts]
    counts = f"{len(prompts)} prompts, {options.new_tokens} tokens, {options.repeats} repeats"
    parts = [HEAD, counts]
    for share in options.expert_cache or (0.125, 0.25, 0.5):
        found = measure(share, prompts, options.repeats, options.new_tokens, options.done)
        parts.append(f"{share:.1%} of the experts cached\n\n{table(found)}")
    text = "\n\n".join(parts) + "\n"
    if options.write:
        with atomic_write(OUTPUT, "w") as handle:
            handle.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
