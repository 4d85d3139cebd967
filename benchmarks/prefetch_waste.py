"""Count what prefetching by the predicted routing brings in usefully and for nothing.

    python -m benchmarks.prefetch_waste [--expert-cache X] [--prompts N] [--new-tokens N] [--write]

The shipped model decodes held-out texts with the predictor ``frequency``. Counts only. What
specfit chooses depends on measured times, so it runs behind the emulated link of
benchmarks.emulated_link, where speculation has something to lose, and its counts differ a little
from run to run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

from .emulated_link import ROOT, heldout_prompts, link_bandwidth, load

if TYPE_CHECKING:
    from specfit_runtime import SpecFit
    from specfit_runtime.report import DecodeTotals

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

OUTPUT = ROOT / "benchmarks" / "results" / "prefetch_waste.txt"
POLICIES = ("eagle-8", "specfit")
#: Transfer over compute of a cold token.
RATIO = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--expert-cache", type=float, default=0.25)
    parser.add_argument("--predictor", action="append", help="names (frequency)")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--write", action="store_true", help="write the result file, too")
    options = parser.parse_args()
    import torch

    from specfit_runtime import SpecFit, calibrate, demo_drafter

    torch.set_num_threads(1)
    predictors = options.predictor or ["frequency"]
    cache, n_prompts, new_tokens = options.expert_cache, options.prompts, options.new_tokens
    rows = []
    for policy in POLICIES:
        bandwidth = link_bandwidth(cache, RATIO) if policy == "specfit" else None
        with offloaded(cache, bandwidth) as model:
            profile = None if bandwidth is None else calibrate(model, eagle3(model))
            for name in predictors:
                plain, ahead = (
                    decoded(
                        model,
                        SpecFit(
                            f"eagle3:{demo_drafter()}",
                            policy=policy,
                            predictor=name,
                            profile=profile,
                            prefetch=prefetch,
                        ),
                        n_prompts,
                        new_tokens,
                    )
                    for prefetch in (False, True)
                )
                rows.append(row(policy, name, ahead, plain))
    text = report(rows, cache, n_prompts, new_tokens)
    print(text)
    if options.write:
        with atomic_write(OUTPUT, "w") as handle:
            handle.write(f"$ python -m benchmarks.prefetch_waste\n{text}\n")


@contextmanager
def offloaded(expert_cache: float, bandwidth: float | None) -> Iterator[Any]:
    from specfit_runtime import offload_of

    model = load(expert_cache, bandwidth)
    with offload_of(model):
        yield model


def eagle3(model: Any) -> Any:
    """Return the shipped head, bound to the model."""
    from specfit_runtime import demo_drafter
    from specfit_runtime.drafters import make_drafter

    drafter = make_drafter(f"eagle3:{demo_drafter()}")
    drafter.bind(model)
    return drafter


def decoded(model: Any, spec: SpecFit, n_prompts: int, new_tokens: int) -> DecodeTotals:
    """Decode all texts one after the other with one memory, and return the sums."""
    from transformers import AutoTokenizer

    from specfit_runtime import DecodeReport, demo_model, offload_of

    offload_of(model).cache.clear()
    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    reports = []
    for prompt in heldout_prompts()[:n_prompts]:
        model.generate(
            tokenizer(prompt, return_tensors="pt").input_ids,
            max_new_tokens=new_tokens,
            do_sample=False,
            custom_generate=spec,
        )
        reports.append(spec.report)
    return DecodeReport.merge(reports).totals


def row(policy: str, predictor: str, ahead: DecodeTotals, plain: DecodeTotals) -> list[str]:
    return [
        policy,
        predictor,
        f"{ahead.verified_per_pass:.2f}",
        f"{ahead.prefetched / ahead.passes:.1f}",
        f"{ahead.prefetch_hits / ahead.prefetched:.1%}" if ahead.prefetched else "-",
        f"{ahead.wasted_prefetch_bytes / ahead.bytes:.1%}",
        f"{ahead.prefetch_hits / (ahead.prefetch_hits + ahead.misses):.1%}",
        f"{plain.hit_rate:.1%}",
        f"{ahead.hit_rate:.1%}",
        f"{ahead.bytes_per_token / plain.bytes_per_token:.3f}",
    ]


def report(
    rows: Sequence[Sequence[str]], expert_cache: float, n_prompts: int, new_tokens: int
) -> str:
    head = ["policy", "predictor", "nodes", "ahead", "used", "waste", "covered"]
    head += ["hits without", "hits", "bytes"]
    return "\n".join(
        [
            f"The shipped model, {n_prompts} held-out texts of {new_tokens} new tokens, "
            f"{expert_cache:.0%} of the experts cached.",
            "nodes: verified per pass; ahead: experts prefetched per pass; used: share of them "
            "that the pass used;",
            "waste: bytes prefetched for nothing, of all bytes moved; covered: share of what would "
            "have been missed that",
            "was prefetched; hits without, hits: found in the cache or on their way, without and "
            "with prefetching;",
            "bytes: moved per token over those without prefetching.",
            "",
            format_table(head, rows, left=["policy", "predictor"]),
        ]
    )


if __name__ == "__main__":
    main()
