"""What the commands that run a model have in common: their options, and loading by them."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specfit_opt.cli.output import note

from ..demo_files import demo_drafter, demo_model
from ..errors import CheckpointError, InvalidInputError

#: What torch-free code may know of the registries; tests hold them against the registries.
STORES = ("disk", "ram", "pinned")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_model_options(parser: argparse._ActionsContainer) -> None:
    """Add what says which model runs, where, and where its experts lie. None is: not given."""
    parser.add_argument(
        "--model",
        metavar="DIR|ID",
        help="folder or hub name of a mixture-of-experts model; default: the one that is shipped",
    )
    parser.add_argument("--device", help="where the model runs: cpu, cuda, cuda:1 (cpu)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="what it computes in; default: as in the checkpoint"
    )
    parser.add_argument(
        "--attn", metavar="NAME", help="attention: sdpa or eager; default: what the model prefers"
    )
    parser.add_argument(
        "--store", choices=STORES, help="where experts wait that are not cached (disk)"
    )
    parser.add_argument(
        "--expert-cache",
        metavar="SIZE",
        help="experts kept beside the model: a share (0.25, 25%%), bytes (8GiB) or experts per "
        "layer (16) (0.25)",
    )
    parser.add_argument("--cache-policy", metavar="NAME", help="what the cache evicts (lfu)")
    parser.add_argument(
        "--emulate-link",
        type=float,
        metavar="GB/S",
        help="make every transfer take its bytes over this bandwidth, for a link that the machine "
        "does not have; whatever is reported says so",
    )
    parser.add_argument(
        "--direct-io",
        action="store_true",
        default=None,
        help="read experts past the page cache (store disk)",
    )
    parser.add_argument(
        "--io-threads", type=int, metavar="N", help="threads that bring experts in (4)"
    )


def add_drafter_option(parser: argparse._ActionsContainer, without: str) -> None:
    """Add what says which drafter works; ``without`` is what happens where none is named."""
    parser.add_argument(
        "--drafter",
        metavar="KIND",
        help=f"eagle3:DIR, lm:DIR (a causal LM of the same vocabulary) or prompt-lookup; {without}",
    )


def add_draw_options(parser: argparse._ActionsContainer) -> None:
    """Add whether tokens are drawn, and what the draws begin with."""
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="draw tokens at this temperature (0: take the most probable one, the default)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random numbers (0)"
    )


def named(args: argparse.Namespace, *, needs_drafter: bool) -> tuple[str, str | None]:
    """Return the model's folder or hub name and the drafter: those that are shipped by default.

    What was chosen for the user is said on standard error.

    Raises
    ------
    InvalidInputError
        If a drafter is needed and none is named for a model of the user's.
    """
    if args.model is not None:
        if args.drafter is None and needs_drafter:
            raise InvalidInputError(
                "--drafter is missing: say eagle3:DIR, lm:DIR or prompt-lookup, which needs no "
                "weights"
            )
        return args.model, args.drafter
    note("no --model given: using the small model that the package ships")
    if args.drafter is None and needs_drafter:
        note("no --drafter given: using the EAGLE-3 head that the package ships for it")
        return str(demo_model()), f"eagle3:{demo_drafter()}"
    return str(demo_model()), args.drafter


def load_model(args: argparse.Namespace, path: str) -> Any:
    """Return the model at ``path``, offloaded as the options of `add_model_options` say.

    Raises
    ------
    InvalidInputError
        If an option is out of range or the model cannot be served.
    StoreError
        If the experts cannot be opened.
    """
    from ..load import load_offloaded

    no_progress_bars()
    options = {
        "device": args.device,
        "dtype": args.dtype,
        "attn_implementation": args.attn,
        "store": args.store,
        "expert_cache": args.expert_cache,
        "cache_policy": args.cache_policy,
        "link_bandwidth": link_bandwidth(args.emulate_link),
        "direct_io": args.direct_io,
        "io_threads": args.io_threads,
    }
    return load_offloaded(path, **{k: v for k, v in options.items() if v is not None})


def no_progress_bars() -> None:
    """Have Transformers load weights without a bar, which it draws without a terminal too."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of the model at ``path``.

    Raises
    ------
    InvalidInputError
        If there is none that can be loaded.
    """
    from transformers import AutoTokenizer

    from ..checkpoint import reading, refuse_code

    folder = Path(path).expanduser()
    if folder.is_dir():
        refuse_code(folder)
    try:
        with reading(folder, "Transformers cannot use the tokenizer of"):
            # Never the code that a checkpoint may bring along, and without asking.
            tokenizer = AutoTokenizer.from_pretrained(
                os.fspath(folder) if folder.is_dir() else path, trust_remote_code=False
            )
            encoded = tokenizer("a", add_special_tokens=False)["input_ids"]
    except CheckpointError as error:
        raise InvalidInputError(f"{path}: no tokenizer: {error}") from error
    # Where the files are missing, what is loaded may be a tokenizer without a vocabulary.
    if not encoded:
        raise InvalidInputError(
            f"{path}: no tokenizer: put its files, such as tokenizer.json, beside the model"
        )
    return tokenizer


def link_bandwidth(gigabytes: float | None) -> float | None:
    """Return bytes per second, or None where no link is emulated.

    Raises
    ------
    InvalidInputError
        If the number is not positive.
    """
    if gigabytes is None:
        return None
    if not 0.0 < gigabytes < float("inf"):
        raise InvalidInputError(
            f"--emulate-link {gigabytes:g}: give the link's bandwidth in GB/s, a positive number"
        )
    return gigabytes * 1e9


def check_output(path: str | None, option: str) -> None:
    """Check, before hours of work, that ``path`` can be written.

    Raises
    ------
    InvalidInputError
        If its folder is not there or cannot be written, or ``path`` is a folder.
    """
    if path is None:
        return
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise InvalidInputError(f"{option} {path}: is a folder; name a file")
    if not os.path.isdir(folder):
        raise InvalidInputError(f"{option} {path}: there is no folder {os.path.dirname(path)}")
    if not os.access(folder, os.W_OK):
        raise InvalidInputError(f"{option} {path}: its folder cannot be written")


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings as lines on standard error while the block runs, without a place in the code.

    Where a warning is asked to be an error, it stays one.
    """

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        note(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        yield
