"""Make the shipped predictor of routing.

    python -m tools.router_training --work WORK --out specfit_runtime/demo/router

WORK is the folder of `tools.demo_model`, whose steps ``corpus`` and ``tokenizer`` write what is
read here. Recordings are kept in WORK/router and made once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from specfit_opt.cli.progress import progress_bar
from specfit_opt.files import load_trace, save_trace
from specfit_runtime.predictors._checkpoint_folder import check_new_folder
from specfit_runtime.predictors.router_network_files import save_router
from specfit_runtime.router_training import train_router
from specfit_runtime.router_training.card import router_card
from tools.demo_model.batches import windows

from .record_decoding import record_decoding
from .record_text import TextRecorder

#: Windows of training text, their length, and how many go into a file.
_LENGTH, _PER_FILE = 256, 800
#: Length of a prompt of the training text, and of its continuation.
_PROMPT, _NEW = 48, 32

_DATA = (
    "The training text of the demo model, with the licences listed in its card: {windows} windows "
    "of 256 tokens that the target and its EAGLE-3 head ran over, and the greedy continuations of "
    "{prompts} beginnings with their whole draft pools, rejected drafts among them. Nothing of its "
    "held-out documents. The recipe is `tools/router_training` in the source repository."
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
    folder = options.work / "router"
    folder.mkdir(exist_ok=True)
    paths = [*_text(ids, folder, options.files), _decoding(ids, folder, options.prompts)]
    with progress_bar("training", unit="nodes") as progress:
        training = train_router(
            [load_trace(path) for path in paths],
            epochs=options.epochs,
            seed=options.seed,
            held_out=0.03,
            progress=progress,
        )
    card = router_card(
        training,
        drafter="eagle3",
        title="specfit demo router",
        data=_DATA.format(windows=options.files * _PER_FILE, prompts=options.prompts),
    )
    figures = training.to_dict()
    save_router(options.out, training.network, card=card, drafter="eagle3", training=figures)
    print(card)


def _text(ids: np.ndarray, folder: Path, files: int) -> Iterator[Path]:
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


def _decoding(ids: np.ndarray, folder: Path, prompts: int) -> Path:
    """Record greedy continuations of places in the text."""
    path = folder / f"decoding-{prompts}.npz"
    if not path.exists():
        starts = np.random.default_rng(1).integers(0, len(ids) - 64, prompts)
        with progress_bar("recording") as progress:
            trace = record_decoding(windows(ids, starts, _PROMPT), _NEW, progress=progress)
        save_trace(path, trace)
    return path


if __name__ == "__main__":
    main()
