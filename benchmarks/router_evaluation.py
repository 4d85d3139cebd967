"""Evaluate the predictors of routing on the shipped model's own decoding, and draw the figures.

    python -m tools.router_training --work WORK --out ROUTER   # records training text in WORK
    python -m benchmarks.router_evaluation --work WORK

WORK is the folder of `tools.demo_model` and `tools.router_training`. Two sets of texts are
continued greedily: beginnings of held-out documents of the kinds that the model was trained on
(``benchmarks/heldout_prompts.jsonl``), and places in dictionary glosses, a kind that it never saw.
Their recordings are kept in WORK/router. The map of ``router:DIR`` is fitted to the recordings of
training text, and ``frequency`` has observed part of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files.atomic import atomic_write

if TYPE_CHECKING:
    from specfit_opt.files import Trace
    from specfit_runtime.router_evaluation import RouterEvaluation

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "benchmarks" / "heldout_prompts.jsonl"
OUTPUT = ROOT / "benchmarks" / "results" / "router_evaluation.txt"
FIGURE = ROOT / "docs" / "router_evaluation.svg"

#: Texts of each set, tokens that begin one, and tokens to decode.
TEXTS, PROMPT_TOKENS, NEW_TOKENS = 20, 64, 64
PROFILES, CACHE = ("pcie4", "nvme"), ("12.5%", "25%", "50%")
#: Files of recorded text that the map is fitted to, beside all recorded decoding. `frequency`
#: observes the first.
FITTED_FILES = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    text = sorted((options.work / "router").glob("text-*.npz"))[:FITTED_FILES]
    decoding = sorted((options.work / "router").glob("decoding-*.npz"))
    if not text or not decoding or not (options.work / "domain.npy").exists():
        print(
            f"{options.work} lacks router/text-*.npz, router/decoding-*.npz or domain.npy: run "
            "tools.demo_model corpus and tokenizer, then tools.router_training",
            file=sys.stderr,
        )
        return 2
    import torch

    torch.set_num_threads(1)
    from specfit_opt.plot import save_figure
    from specfit_runtime.router_evaluation.plot import plot_evaluations

    traces = recorded(options.work)
    estimates = "\n\n".join(estimate_table(trace) for trace in traces)
    evaluations, levels = evaluate(traces, [*text, *decoding])
    decodes = "\n\n".join(decode_table(trace) for trace in traces)
    with atomic_write(options.output, "w") as handle:
        handle.write(f"{report(traces, evaluations, levels)}\n{decodes}\n\n{estimates}\n")
    save_figure(plot_evaluations(evaluations), options.figure)
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
    from tools.router_training.record_decoding import record_decoding

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    known = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines[:TEXTS]]
    same = torch.tensor([ids[:PROMPT_TOKENS] for ids in known])
    glosses = np.load(work / "domain.npy", mmap_mode="r")
    starts = np.random.default_rng(0).integers(0, len(glosses) - PROMPT_TOKENS, TEXTS)
    other = windows(glosses, starts, PROMPT_TOKENS)
    traces = []
    for name, prompts in (("same domain", same), ("other domain", other)):
        path = work / "router" / f"{name}.npz"
        if not path.exists():
            save_trace(path, record_decoding(prompts, NEW_TOKENS))
        traces.append(load_trace(path))
    return traces


def estimate_table(trace: Trace) -> str:
    """Return the recall of the untrained router at depth 1, by what it is given to read."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from specfit_opt.text import format_table
    from specfit_runtime import demo_model
    from specfit_runtime.predictors._gates import Gates
    from specfit_runtime.predictors.router_map import unit
    from specfit_runtime.router_evaluation.recall import node_recall

    model = AutoModelForCausalLM.from_pretrained(
        demo_model(), dtype=torch.float32, trust_remote_code=False
    )
    gates, rows = Gates.of(model), np.flatnonzero(trace.depth == 1)
    assert trace.states is not None  # recorded made it
    embedding = model.get_input_embeddings().weight.detach()
    token = unit(embedding[torch.from_numpy(trace.token[rows].astype(np.int64))])
    state = unit(torch.from_numpy(trace.states[rows].astype(np.float32)))
    last = gates.n_layers - 1
    estimates = {
        "embedding": lambda layer: token,
        "state": lambda layer: state,
        "sum": lambda layer: token + state,
        "from one to the other": lambda layer: torch.lerp(token, state, layer / last),
    }
    table = []
    for name, estimate in estimates.items():
        read = torch.stack([unit(estimate(i)) * gates.norm[i] for i in range(last + 1)], dim=1)
        logits = torch.einsum("nlh,leh->nle", read, gates.weight)
        found = node_recall(gates.experts(logits).numpy(), trace.experts[rows]).mean(axis=0)
        table.append([name, f"{found.mean():.3f}", *(f"{r:.3f}" for r in found)])
    title = f"router reads, {trace.name}"
    return format_table([title, "recall at depth 1", *map(str, range(last + 1))], table)


def decode_table(trace: Trace) -> str:
    """Return how fast specfit decodes by predictor, beside the oracle and plain decoding."""
    from specfit_runtime.simulation import simulate

    from specfit_opt.text import format_table
    from specfit_runtime import demo_router

    names = {
        "last-token": "last-token",
        "frequency": "frequency",
        "learned": f"learned:{demo_router()}",
        "oracle": "oracle",
    }

    def speeds(policy: str, predictor: str) -> list[float]:
        results = [
            result
            for profile in PROFILES
            for result in simulate(
                trace,
                policies=[policy],
                predictor=predictor,
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


def evaluate(
    traces: Sequence[Trace], training: Sequence[Path]
) -> tuple[list[RouterEvaluation], tuple[float, ...]]:
    """Return the evaluations, and what the drafter takes for each level."""
    from specfit_opt.files import load_trace
    from specfit_runtime import calibrate, demo_drafter, demo_model, demo_router, load_offloaded
    from specfit_runtime.drafters import make_drafter
    from specfit_runtime.predictors import make_predictor
    from specfit_runtime.predictors.fit_router_map import fit_router_map
    from specfit_runtime.router_evaluation import evaluate_router, teach

    model = load_offloaded(demo_model(), expert_cache=1.0, dtype="float32")
    drafter = make_drafter(f"eagle3:{demo_drafter()}")
    profile = calibrate(model, drafter, max_nodes=1, draft_levels=traces[0].max_depth)
    evaluations = []
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit_router_map([load_trace(path) for path in training], model)
        fitted.save(folder)
        names = {
            "last-token": "last-token",
            "frequency": "frequency",
            "frequency, taught": "frequency",
            "router": "router",
            "router, fitted": f"router:{folder}",
            "learned": f"learned:{demo_router()}",
            "oracle": "oracle",
        }
        for trace in traces:
            for name, spec in names.items():
                predictor = make_predictor(spec)
                predictor.bind(model, drafter)
                if name == "frequency, taught":
                    teach(predictor, load_trace(training[0]))
                evaluations.append(
                    evaluate_router(
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
    return evaluations, profile.draft_time


def report(
    traces: Sequence[Trace],
    evaluations: Sequence[RouterEvaluation],
    levels: Sequence[float],
) -> str:
    """Return what was measured, and the tables."""
    from specfit_runtime.router_evaluation.table import evaluation_table

    sizes = " and ".join(f"{trace.n_cycles} positions ({trace.name})" for trace in traces)
    return (
        "Predictors of routing on the demo model's greedy decoding with its EAGLE-3 head: "
        f"{TEXTS} texts each,\n{sizes}, pools of five levels. Decisions at the\nprices of experts "
        f"of {EXAMPLE_EXPERT_BYTES:,} bytes, each recorded layer standing for "
        f"{EXAMPLE_LAYER_REPEAT}.\n\n{evaluation_table(evaluations, levels)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
