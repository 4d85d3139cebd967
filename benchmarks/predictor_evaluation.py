"""Evaluate the predictors of routing on the shipped model's own decoding.

    python -m benchmarks.predictor_evaluation [--write]

Beginnings of held-out documents (``benchmarks/heldout_prompts.jsonl``) are continued greedily, and
every predictor is run over that recording. ``--write`` replaces the file that the documentation
shows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files.atomic import atomic_write

if TYPE_CHECKING:
    from specfit_opt.files import Trace
    from specfit_runtime.predictor_evaluation import PredictorEvaluation

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "benchmarks" / "heldout_prompts.jsonl"
OUTPUT = ROOT / "benchmarks" / "results" / "predictor_evaluation.txt"

#: Texts of each set, tokens that begin one, and tokens to decode.
TEXTS, PROMPT_TOKENS, NEW_TOKENS = 20, 64, 64
PROFILES, CACHE = ("pcie4", "nvme"), ("12.5%", "25%", "50%")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    trace = recorded()
    text = f"{report(trace, evaluate(trace))}\n{decode_table(trace)}\n"
    print(text)
    if options.write:
        with atomic_write(OUTPUT, "w") as handle:
            handle.write(text)
    return 0


def recorded() -> Trace:
    """Return the model's own decoding after the held-out texts."""
    from transformers import AutoTokenizer

    from specfit_runtime import demo_model
    from tools.predictor_training.record_decoding import record_decoding

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()[:TEXTS]
    known = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    prompts = [ids[:PROMPT_TOKENS] for ids in known]
    return record_decoding(prompts, NEW_TOKENS, name="held-out texts")


def decode_table(trace: Trace) -> str:
    """Return how fast specfit decodes by predictor, beside the oracle and plain decoding."""
    from specfit_opt.replay import replay
    from specfit_opt.text import format_table
    from specfit_runtime import demo_predictor
    from specfit_runtime.predictors import make_predictor

    names = {
        "frequency": "frequency",
        "learned": f"learned:{demo_predictor()}",
        "oracle": "oracle",
    }

    def speeds(policy: str, predictor: str) -> list[float]:
        results = [
            result
            for profile in PROFILES
            for result in replay(
                trace,
                policies=[policy],
                predictor=lambda: make_predictor(predictor),
                profile=profile,
                cache=CACHE,
                cache_policy="lru",
                expert_bytes=EXAMPLE_EXPERT_BYTES,
                layer_repeat=EXAMPLE_LAYER_REPEAT,
            )
        ]
        return [result.tokens_per_second for result in results]

    plain, best = speeds("ar", "oracle"), speeds("specfit", "oracle")
    rows = []
    for name, predictor in names.items():
        own = speeds("specfit", predictor)
        rows.append(
            [name, *(f"{o / b:.3f} {o / p:.3f}" for o, b, p in zip(own, best, plain, strict=True))]
        )
    title = f"specfit over oracle's, over ar; {trace.name}"
    return format_table([title, *(f"{p}, {c}" for p in PROFILES for c in CACHE)], rows)


def evaluate(trace: Trace) -> list[PredictorEvaluation]:
    """Return what each predictor comes to."""
    from specfit_runtime import demo_predictor
    from specfit_runtime.predictor_evaluation import evaluate_predictor

    evaluations = []
    for spec in ("frequency", f"learned:{demo_predictor()}", "oracle"):
        evaluations.append(
            evaluate_predictor(
                trace,
                spec,
                profiles=PROFILES,
                cache=CACHE,
                expert_bytes=EXAMPLE_EXPERT_BYTES,
                layer_repeat=EXAMPLE_LAYER_REPEAT,
            )
        )
        print(evaluations[-1].predictor, file=sys.stderr)
    return evaluations


def report(trace: Trace, evaluations: Sequence[PredictorEvaluation]) -> str:
    """Return what was measured, and the tables."""
    from specfit_runtime.predictor_evaluation.table import evaluation_table

    return (
        "Predictors of routing on the demo model's greedy decoding with its EAGLE-3 head: "
        f"{TEXTS} held-out\ntexts, {trace.n_cycles} positions, trees of five levels. Decisions at "
        f"the prices of experts of\n{EXAMPLE_EXPERT_BYTES:,} bytes, each recorded layer standing "
        f"for {EXAMPLE_LAYER_REPEAT}.\n\n{evaluation_table(evaluations)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
