"""Evaluate the predictors of routing on the shipped model's own decoding.

    python -m tools.predictor_training --work WORK --out NEW   # records training text in WORK
    python -m benchmarks.predictor_evaluation --work WORK

WORK is the folder of `tools.demo_model` and `tools.predictor_training`. Two sets of texts are
continued greedily: beginnings of held-out documents of the kinds that the model was trained on
(``benchmarks/heldout_prompts.jsonl``), and places in dictionary glosses, a kind that it never saw.
Their recordings are kept in WORK/predictor. ``frequency, taught`` has observed a recording of
training text first.
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
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    text = options.work / "predictor" / "text-00.npz"
    if not text.exists() or not (options.work / "domain.npy").exists():
        print(
            f"{options.work} lacks predictor/text-00.npz or domain.npy: run tools.demo_model "
            "corpus and tokenizer, then tools.predictor_training",
            file=sys.stderr,
        )
        return 2
    import torch

    torch.set_num_threads(1)
    traces = recorded(options.work)
    evaluations = evaluate(traces, text)
    decodes = "\n\n".join(decode_table(trace) for trace in traces)
    with atomic_write(options.output, "w") as handle:
        handle.write(f"{report(traces, evaluations)}\n{decodes}\n")
    print(options.output.read_text(encoding="utf-8"))
    return 0


def recorded(work: Path) -> list[Trace]:
    """Return the recordings of both sets, made where they are missing."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer

    from specfit_opt.files import load_trace, save_trace
    from specfit_runtime import demo_model
    from tools.demo_model.batches import windows
    from tools.predictor_training.record_decoding import record_decoding

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    known = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines[:TEXTS]]
    same = torch.tensor([ids[:PROMPT_TOKENS] for ids in known])
    glosses = np.load(work / "domain.npy", mmap_mode="r")
    starts = np.random.default_rng(0).integers(0, len(glosses) - PROMPT_TOKENS, TEXTS)
    other = windows(glosses, starts, PROMPT_TOKENS)
    traces = []
    for name, prompts in (("same domain", same), ("other domain", other)):
        path = work / "predictor" / f"{name}.npz"
        if not path.exists():
            save_trace(path, record_decoding(prompts, NEW_TOKENS))
        traces.append(load_trace(path))
    return traces


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


def evaluate(traces: Sequence[Trace], text: Path) -> list[PredictorEvaluation]:
    """Return the evaluations; ``text`` is what the taught one has observed."""
    from specfit_opt.files import load_trace
    from specfit_runtime import demo_predictor
    from specfit_runtime.predictor_evaluation import evaluate_predictor, teach
    from specfit_runtime.predictors import make_predictor

    names = {
        "frequency": "frequency",
        "frequency, taught": "frequency",
        "learned": f"learned:{demo_predictor()}",
        "oracle": "oracle",
    }
    evaluations = []
    for trace in traces:
        for name, spec in names.items():
            predictor = make_predictor(spec)
            if name == "frequency, taught":
                teach(predictor, load_trace(text))
            evaluations.append(
                evaluate_predictor(
                    trace,
                    predictor,
                    profiles=PROFILES,
                    cache=CACHE,
                    expert_bytes=EXAMPLE_EXPERT_BYTES,
                    layer_repeat=EXAMPLE_LAYER_REPEAT,
                    name=name,
                )
            )
            print(f"{trace.name}: {name}", file=sys.stderr)
    return evaluations


def report(traces: Sequence[Trace], evaluations: Sequence[PredictorEvaluation]) -> str:
    """Return what was measured, and the tables."""
    from specfit_runtime.predictor_evaluation.table import evaluation_table

    sizes = " and ".join(f"{trace.n_cycles} positions ({trace.name})" for trace in traces)
    return (
        "Predictors of routing on the demo model's greedy decoding with its EAGLE-3 head: "
        f"{TEXTS} texts each,\n{sizes}, pools of five levels. Decisions at the\nprices of experts "
        f"of {EXAMPLE_EXPERT_BYTES:,} bytes, each recorded layer standing for "
        f"{EXAMPLE_LAYER_REPEAT}.\n\n{evaluation_table(evaluations)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
