"""Decode the shipped model over an emulated slow link with several policies, side by side.

    python -m benchmarks.emulated_link [--expert-cache X]... [--ratio R] [--repeats N]

The link is set so that bringing in all experts of one cold token takes R times as long as computing
one token does here. Per prompt the policies take turns; each has a model, a cache and a memory of
its own. Costs are calibrated beforehand, and two other texts are decoded first, which teach specfit
acceptance and routing. Times are of decoding alone, the prefill excluded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

if TYPE_CHECKING:
    from specfit_runtime import DecodeReport

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "benchmarks" / "heldout_prompts.jsonl"
OUTPUT = ROOT / "benchmarks" / "results" / "emulated_link.txt"
POLICIES = ("ar", "chain-2", "chain-4", "eagle-8", "eagle-60", "evict", "ecospec", "specfit")

_PARTS = ("draft", "search", "transfer", "verify", "other")


@dataclass(frozen=True)
class Cell:
    """One cache size: a report per policy, prompt and repeat."""

    expert_cache: float
    bandwidth: float
    reports: dict[str, list[list[DecodeReport]]]

    def seconds(self, policy: str, prompt: int) -> float:
        """Return the median over the repeats."""
        return median(report.totals.seconds for report in self.reports[policy][prompt])

    def total(self, policy: str) -> float:
        return math.fsum(self.seconds(policy, i) for i in range(len(self.reports[policy])))

    def merged(self, policy: str) -> DecodeReport:
        from specfit_runtime import DecodeReport

        return DecodeReport.merge([r for repeats in self.reports[policy] for r in repeats])


def heldout_prompts() -> list[str]:
    """Return 20 beginnings of texts that the shipped model was not trained on."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def run(
    policies: Sequence[str],
    expert_cache: float,
    *,
    ratio: float,
    n_prompts: int,
    new_tokens: int,
    repeats: int,
    predictor: str,
) -> Cell:
    """Decode every prompt with every policy.

    Raises
    ------
    RuntimeError
        If an output differs from that of stock decoding.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specfit_opt.policies import make_policy
    from specfit_runtime import SpecFit, calibrate, demo_drafter, demo_model, offload_of
    from specfit_runtime.alignment import align_weights
    from specfit_runtime.demo_files import demo_prompts
    from specfit_runtime.drafters import make_drafter

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    prompts = [tokenizer(p, return_tensors="pt").input_ids for p in heldout_prompts()[:n_prompts]]
    stock = align_weights(
        AutoModelForCausalLM.from_pretrained(
            demo_model(), dtype=torch.float32, trust_remote_code=False
        ).eval()
    )
    wanted = [
        stock.generate(p, max_new_tokens=new_tokens, do_sample=False)[0].tolist() for p in prompts
    ]
    bandwidth = link_bandwidth(expert_cache, ratio)
    head = f"eagle3:{demo_drafter()}"
    models, specs = {}, {}
    for policy in policies:
        model = models[policy] = load(expert_cache, bandwidth)
        profile = None
        if make_policy(policy).priced:
            drafter = make_drafter(head)
            drafter.bind(model)
            profile = calibrate(model, drafter)
        specs[policy] = SpecFit(
            None if policy == "ar" else head, policy=policy, profile=profile, predictor=predictor
        )
        for text in demo_prompts()[:2]:
            model.generate(
                tokenizer(text, return_tensors="pt").input_ids,
                max_new_tokens=new_tokens,
                do_sample=False,
                custom_generate=specs[policy],
            )
    reports: dict[str, list[list[DecodeReport]]] = {
        policy: [[] for _ in prompts] for policy in policies
    }
    for repeat in range(repeats):
        for i, prompt in enumerate(prompts):
            # Whoever begins meets the machine in another state; so everyone begins in turn.
            turn = (i + repeat) % len(policies)
            for policy in (*policies[turn:], *policies[:turn]):
                out = models[policy].generate(
                    prompt,
                    max_new_tokens=new_tokens,
                    do_sample=False,
                    custom_generate=specs[policy],
                )
                if out[0].tolist() != wanted[i]:
                    raise RuntimeError(f"prompt {i}, policy {policy}: the tokens differ from stock")
                reports[policy][i].append(specs[policy].report)
            print(f"cache {expert_cache:.1%}: prompt {i + 1} of {len(prompts)}", file=sys.stderr)
    for model in models.values():
        offload_of(model).close()
    return Cell(expert_cache, bandwidth, reports)


def load(expert_cache: float, bandwidth: float | None) -> Any:
    """Return the shipped model, its experts in memory: no disk shall add to the link's time."""
    from specfit_runtime import demo_model, load_offloaded

    return load_offloaded(
        demo_model(),
        expert_cache=expert_cache,
        store="ram",
        dtype="float32",
        link_bandwidth=bandwidth,
    )


def link_bandwidth(expert_cache: float, ratio: float) -> float:
    """Return the bytes per second at which a cold token's experts take ``ratio`` computes."""
    from specfit_runtime import calibrate, offload_of

    model = load(expert_cache, None)
    with offload_of(model) as offload:
        profile = calibrate(model, max_nodes=1)
        one = profile.fixed_time + profile.node_time
        moved = int(offload.store.moved_bytes.sum()) * offload.top_k
    return moved / (ratio * one)


def table(cell: Cell) -> str:
    """Return the figures of one cache size, policies as rows."""
    rows = []
    base = cell.total("ar")
    n_prompts = len(cell.reports["ar"])
    for policy in cell.reports:
        merged = cell.merged(policy).totals
        ratios = [
            cell.seconds("ar", i) / cell.seconds(policy, i) for i in range(n_prompts)
        ]
        rows.append(
            [
                policy,
                f"{base / cell.total(policy):.3f}",
                f"{min(ratios):.3f}",
                f"{max(ratios):.3f}",
                f"{merged.tokens_per_pass:.2f}",
                f"{merged.verified_per_pass:.2f}",
                f"{merged.moved_per_token:.2f}",
                f"{merged.bytes_per_token / 1e3:.0f}",
                f"{merged.hit_rate:.1%}",
                *(f"{merged.share(part):.0%}" for part in _PARTS),
            ]
        )
    head = ["policy", "speed", "worst", "best", "tokens", "nodes", "moved", "kB", "hits"]
    return format_table([*head, *_PARTS], rows, left=["policy"])


def report(
    cells: Sequence[Cell], ratio: float, n_prompts: int, new_tokens: int, predictor: str
) -> str:
    lines = [
        f"{n_prompts} held-out prompts, {new_tokens} new tokens each, greedy, float32, one thread;",
        f"bringing in a cold token's experts takes {ratio:g} times as long as computing a token",
        "(the link is emulated). Costs were calibrated and two other texts decoded beforehand.",
        f"Routing predicted by: {predictor}.",
        "Every output was equal to that of stock decoding.",
        "speed: tokens per second relative to ar over all prompts; worst, best: of one prompt;",
        "tokens, nodes: committed and verified per pass; moved, kB: experts and bytes per token.",
    ]
    for cell in cells:
        lines += [
            "",
            f"{cell.expert_cache:.1%} of the experts cached, {cell.bandwidth / 1e6:.1f} MB/s",
            "",
            table(cell),
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--expert-cache", type=float, action="append", help="0.125, 0.25, 0.5")
    parser.add_argument("--policy", action="append", help=f"default {', '.join(POLICIES)}")
    parser.add_argument("--ratio", type=float, default=5.0, help="transfer over compute (5)")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--predictor", default="frequency", help="of routing (frequency)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    policies = list(dict.fromkeys(["ar", *(options.policy or POLICIES)]))
    cells = [
        run(
            policies,
            share,
            ratio=options.ratio,
            n_prompts=options.prompts,
            new_tokens=options.new_tokens,
            repeats=options.repeats,
            predictor=options.predictor,
        )
        for share in options.expert_cache or (0.125, 0.25, 0.5)
    ]
    text = report(
        cells, options.ratio, options.prompts, options.new_tokens, options.predictor
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.output, "w") as handle:
        handle.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
