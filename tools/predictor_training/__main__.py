"""Make the shipped predictor of routing.

    python -m tools.predictor_training --work WORK --out specfit_runtime/demo/predictor

WORK is the folder of `tools.demo_model`, whose steps ``corpus`` and ``tokenizer`` write what is
read here. Recordings are kept in WORK/predictor and made once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specfit_opt.cli.output import progress_bar
from specfit_opt.files import Trace, load_trace, save_trace
from specfit_runtime import demo_model
from specfit_runtime.cli.options import load_tokenizer
from specfit_runtime.predictor_training import train_predictor
from specfit_runtime.predictor_training.card import predictor_card
from specfit_runtime.predictors.routing_network import RoutingNetwork
from specfit_runtime.predictors.routing_network_files import check_new_folder, save_network
from tools.demo_model.batches import windows

from .record_decoding import record_decoding
from .record_text import TextRecorder

#: Windows of training text, their length, and how many go into a file.
_LENGTH, _PER_FILE = 256, 800
#: Length of a prompt of the training text, and of what is decoded after it.
_PROMPT, _NEW = 48, 32
#: Prompts that nothing was trained on, and what is decoded after them.
_HELD_OUT, _HELD_OUT_NEW = Path("benchmarks", "heldout_prompts.jsonl"), 64

_DATA = (
    "The training text of the demo model, with the licences listed in its card: {windows} windows "
    "of 256 tokens that the target and its EAGLE-3 head ran over, and the greedy continuations of "
    "{prompts} beginnings with their whole draft pools, rejected drafts among them. Nothing of its "
    "held-out documents. The recipe is `tools/predictor_training` in the source repository."
)
_EVALUATION = (
    "Those texts are held out from this training, not from the target's own. In draft pools after "
    "the 20 prompts of `benchmarks/heldout_prompts.jsonl`, which no training saw, recall at depth "
    "1 is {held_out:.1%}, and after 20 places of WordNet's glosses, another domain, {domain:.1%}."
)


def main() -> None:
    """Record what is not recorded yet, train, and write the checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="the folder of tools.demo_model")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the checkpoint")
    parser.add_argument("--files", type=int, default=9, help="files of 800 windows of text (9)")
    parser.add_argument("--prompts", type=int, default=80, help="texts to continue (80)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    check_new_folder(options.out)
    torch.set_num_threads(1)  # so that a seed gives the same network everywhere
    ids = np.load(options.work / "train.npy", mmap_mode="r")
    folder = options.work / "predictor"
    folder.mkdir(exist_ok=True)
    paths = [*_text(ids, folder, options.files), _decoding(ids, folder, options.prompts)]
    with progress_bar("training", unit="nodes") as progress:
        training = train_predictor(
            [load_trace(path) for path in paths],
            epochs=options.epochs,
            seed=options.seed,
            held_out=0.03,
            progress=progress,
        )
    held_out, domain = _unseen(options.work, folder)
    evaluation = _EVALUATION.format(
        held_out=_first_depth(training.network, held_out),
        domain=_first_depth(training.network, domain),
    )
    card = predictor_card(
        training,
        drafter="eagle3",
        title="specfit demo predictor",
        data=_DATA.format(windows=options.files * _PER_FILE, prompts=options.prompts),
        evaluation=evaluation,
    )
    figures = training.to_dict()
    save_network(options.out, training.network, card=card, drafter="eagle3", training=figures)
    print(card)


def _text(ids: NDArray[np.uint16], folder: Path, files: int) -> Iterator[Path]:
    """Record windows of the text in random order; yield the files."""
    starts = _LENGTH * np.random.default_rng(0).permutation((len(ids) - _LENGTH - 1) // _LENGTH)
    recorder = None
    for i in range(files):
        path = folder / f"text-{i:02d}.npz"
        if not path.exists():
            recorder = recorder or TextRecorder()
            some = starts[i * _PER_FILE : (i + 1) * _PER_FILE]
            save_trace(path, recorder.record(windows(ids, some, _LENGTH)))
        yield path


def _decoding(ids: NDArray[np.uint16], folder: Path, prompts: int) -> Path:
    """Record greedy continuations of places in the text."""
    starts = np.random.default_rng(1).integers(0, len(ids) - 64, prompts)
    some = windows(ids, starts, _PROMPT).tolist()
    return _decoded(folder / f"decoding-{prompts}.npz", some, _NEW)


def _unseen(work: Path, folder: Path) -> tuple[Trace, Trace]:
    """Record decoding after prompts of the target's kinds of text, and of another one."""
    tokenizer = load_tokenizer(str(demo_model()))
    lines = _HELD_OUT.read_text(encoding="utf-8").splitlines()
    prompts = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    ids = np.load(work / "domain.npy", mmap_mode="r")
    starts = np.linspace(0, len(ids) - 64, 20).astype(np.int64)
    return (
        load_trace(_decoded(folder / "heldout.npz", prompts, _HELD_OUT_NEW)),
        load_trace(_decoded(folder / "domain.npz", windows(ids, starts, _PROMPT).tolist(), _NEW)),
    )


def _decoded(path: Path, prompts: Sequence[Sequence[int]], new: int) -> Path:
    if not path.exists():
        with progress_bar("recording") as progress:
            save_trace(path, record_decoding(prompts, new, progress=progress))
    return path


@torch.inference_mode()
def _first_depth(network: RoutingNetwork, trace: Trace) -> float:
    """Return the share of the experts of nodes at depth 1 that are predicted."""
    assert trace.states is not None
    nodes = trace.depth == 1
    scores = network(
        torch.from_numpy(trace.token[nodes].astype(np.int64)),
        torch.ones(int(nodes.sum()), dtype=torch.int64),
        torch.from_numpy(trace.states[nodes].astype(np.float32)),
    )
    found = scores.topk(network.shape.top_k, dim=-1).indices.numpy()
    return float((found[..., :, None] == trace.experts[nodes][..., None, :]).any(axis=2).mean())


if __name__ == "__main__":
    main()
