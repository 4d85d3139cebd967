"""Command line of the recipe: ``python -m tools.demo_model STEP``."""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .corpus import build_corpus, read_corpus
from .drafter import SMOKE_DRAFTER, STANDARD_DRAFTER, DrafterShape
from .evaluate import EvaluationSize, evaluate_drafter, evaluate_target, write_json
from .shape import SMOKE, STANDARD, Shape
from .tokenizer import encode, train_tokenizer
from .train import TrainingPlan, load_checkpoint, train
from .train_drafter import DrafterPlan, train_drafter


@dataclass(frozen=True)
class Recipe:
    """Sizes and plans of all steps."""

    shape: Shape
    plan: TrainingPlan
    drafter: DrafterShape
    drafter_plan: DrafterPlan
    evaluation: EvaluationSize
    fused: bool


STANDARD_RECIPE = Recipe(
    STANDARD, TrainingPlan(), STANDARD_DRAFTER, DrafterPlan(), EvaluationSize(), fused=True
)
SMOKE_RECIPE = Recipe(
    SMOKE,
    TrainingPlan(batch=8, warmup=5, steps=60, decay_steps=20, save_every=20, evaluate_every=60),
    SMOKE_DRAFTER,
    DrafterPlan(batch=8, warmup=5, steps=30, decay_steps=10, save_every=10, evaluate_every=30),
    EvaluationSize(windows=8, routing_windows=16, prompts=8, generations=4, generated=16),
    fused=False,
)


def main(arguments: list[str] | None = None) -> None:
    """Run one step, or all of them in order."""
    options = _parser().parse_args(arguments)
    recipe = SMOKE_RECIPE if options.smoke else STANDARD_RECIPE
    if options.steps is not None:
        recipe = replace(recipe, plan=replace(recipe.plan, steps=options.steps))
    if options.drafter_steps is not None:
        plan = replace(recipe.drafter_plan, steps=options.drafter_steps)
        recipe = replace(recipe, drafter_plan=plan)
    import torch

    from .fusion import fuse

    if options.threads:
        torch.set_num_threads(options.threads)
    fuse(recipe.fused)
    options.work.mkdir(parents=True, exist_ok=True)
    steps = RECIPE if options.step == "all" else [options.step]
    for step in steps:
        STEPS[step](options, recipe)


def _corpus(options: argparse.Namespace, recipe: Recipe) -> None:
    path = options.work / "corpus.jsonl"
    if options.smoke:
        from .smoke_corpus import write_smoke_corpus

        write_smoke_corpus(path)
    else:
        build_corpus(options.downloads or options.work / "downloads", path)
    for name, size in sorted(_sizes(path).items()):
        print(f"{name:>24} {size:>10} bytes")


def _tokenizer(options: argparse.Namespace, recipe: Recipe) -> None:
    documents = read_corpus(options.work / "corpus.jsonl")
    folder = options.work / "tokenizer"
    texts = (document.text for document in documents if document.split == "train")
    train_tokenizer(texts, recipe.shape.vocab_size, folder)
    for split in ("train", "heldout"):
        some = [document for document in documents if document.split == split]
        count = encode(some, folder, options.work / f"{split}.npy")
        print(f"{split}: {count} tokens")


def _train(options: argparse.Namespace, recipe: Recipe) -> None:
    train(options.work, recipe.shape, recipe.plan)


def _train_drafter(options: argparse.Namespace, recipe: Recipe) -> None:
    train_drafter(options.work, recipe.drafter, recipe.drafter_plan)


def _evaluate(options: argparse.Namespace, recipe: Recipe) -> None:
    write_json(evaluate_target(options.work, recipe.evaluation), options.work / "target.json")
    write_json(evaluate_drafter(options.work, recipe.evaluation), options.work / "drafter.json")
    target, drafter = _figures(options.work)
    print(f"held-out perplexity {target['held_out_perplexity']}")
    for setting in ("after_held_out_text", "along_greedy_generation"):
        print(f"{setting}: {drafter[setting]['chain']['committed_per_pass']}")


def _routing_stats(options: argparse.Namespace, recipe: Recipe) -> None:
    from .acceptance_table import acceptance_table
    from .routing_figure import draw_routing, routing_tables

    target, drafter = _figures(options.work)
    draw_routing(target, drafter["tree_unions"], options.work / "routing.svg")
    tables = {
        "routing.txt": routing_tables(target, drafter["tree_unions"]),
        "acceptance.txt": acceptance_table(drafter),
    }
    for name, text in tables.items():
        (options.work / name).write_text(text + "\n", encoding="utf-8")
        print(text, end="\n\n")


def _export(options: argparse.Namespace, recipe: Recipe) -> None:
    from .cards import drafter_card, target_card
    from .export import export_target
    from .export_drafter import export_drafter

    work, out = options.work, options.out or options.work / "demo"
    export_target(work / "target.pt", work / "tokenizer", out / "model")
    export_drafter(work, out / "drafter")
    target, drafter = _figures(work)
    sizes = _sizes(work / "corpus.jsonl")
    cards = {
        "model": target_card(target, _record(work / "target.pt", work), sizes),
        "drafter": drafter_card(drafter, _record(work / "drafter.pt", work)),
    }
    for name, text in cards.items():
        (out / name / "README.md").write_text(text, encoding="utf-8")
    for name in ("target", "drafter"):
        folder = out / ("model" if name == "target" else name)
        shutil.copyfile(work / f"{name}.json", folder / "evaluation.json")
    for file in sorted(out.rglob("*.*")):
        print(f"{file.stat().st_size:>10} {file.relative_to(out)}")


def _speed(options: argparse.Namespace, recipe: Recipe) -> None:
    from .speed import speed_table

    print(speed_table(recipe.shape))


STEPS: dict[str, Callable[[argparse.Namespace, Recipe], None]] = {
    "corpus": _corpus,
    "tokenizer": _tokenizer,
    "train": _train,
    "train-drafter": _train_drafter,
    "evaluate": _evaluate,
    "routing-stats": _routing_stats,
    "export": _export,
    "speed": _speed,
}
RECIPE = [step for step in STEPS if step != "speed"]


def _record(checkpoint: Path, work: Path) -> dict[str, Any]:
    """Return what a checkpoint says about its run."""
    import numpy as np

    saved = load_checkpoint(checkpoint)
    sequence = load_checkpoint(work / "target.pt")["shape"]["sequence"]
    tokens = saved["step"] * saved["plan"]["batch"] * sequence
    return {
        "step": saved["step"],
        "tokens": tokens,
        "epochs": tokens / len(np.load(work / "train.npy", mmap_mode="r")),
        "processor_hours": saved.get("processor_time", 0.0) / 3600,
        "decay_steps": saved["schedule"]["decay_steps"],
        "shape": saved["shape"],
        "plan": saved["plan"],
    }


def _figures(work: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    target, drafter = (
        json.loads((work / f"{name}.json").read_text("utf-8")) for name in ("target", "drafter")
    )
    return target, drafter


def _sizes(corpus: Path) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for document in read_corpus(corpus):
        sizes[f"{document.source} {document.split}"] += len(document.text.encode())
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model", description=__doc__)
    parser.add_argument(
        "step", choices=[*STEPS, "all"], help="what to do; all: the recipe in order"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of checkpoints and figures; kept"
    )
    parser.add_argument("--downloads", type=Path, help="where the packages lie or go")
    parser.add_argument("--out", type=Path, help="where export writes; default WORK/demo")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: under two minutes")
    parser.add_argument("--steps", type=int, help="training steps of the target")
    parser.add_argument("--drafter-steps", type=int, help="training steps of the drafter")
    parser.add_argument("--threads", type=int, help="processor threads")
    return parser


if __name__ == "__main__":
    main()
