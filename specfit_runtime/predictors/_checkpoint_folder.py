"""Folders that hold a predictor: ``config.json``, ``model.safetensors`` and a card."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..alignment import aligned
from ..errors import CheckpointError, InvalidInputError

#: The files of a folder.
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def check_new_folder(folder: str | os.PathLike[str]) -> None:
    """Check, before the work, that `write_new_folder` can write there.

    Raises
    ------
    InvalidInputError
        If ``folder`` holds something already, or the folder above is missing or cannot be written.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInputError(f"{place}: exists already; name a new folder")
    above = place.absolute().parent
    if not above.is_dir():
        raise InvalidInputError(f"{place}: there is no folder {above}")
    if not os.access(above, os.W_OK):
        raise InvalidInputError(f"{place}: the folder above cannot be written")


def write_new_folder(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    card: str,
) -> None:
    """Write a folder, all or nothing.

    Parameters
    ----------
    folder : path
        Is made; see `check_new_folder`.
    config : mapping
        Values that JSON can hold.
    weights : mapping of str to Tensor
    card : str

    Raises
    ------
    InvalidInputError
        As `check_new_folder`.
    OSError
        If a file cannot be written.
    """
    check_new_folder(folder)
    place = Path(folder)
    partial = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    partial.mkdir()
    try:
        (partial / WEIGHTS).write_bytes(save({k: w.contiguous().cpu() for k, w in weights.items()}))
        (partial / CARD).write_text(card, encoding="utf-8")
        (partial / CONFIG).write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
        if place.exists():
            place.rmdir()
        partial.rename(place)
    finally:
        # After an error or an interrupt nothing half-written may stay behind.
        shutil.rmtree(partial, ignore_errors=True)


def read_folder(
    folder: str | os.PathLike[str], what: str, version: int, maker: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the weights of a folder.

    Parameters
    ----------
    folder : path
    what : str
        Such as ``"router network"``; its ``format`` is ``"specfit"`` and that.
    version : int
        The version that is read.
    maker : str
        The command that makes one.

    Raises
    ------
    CheckpointError
        If a file is missing or unreadable, or is something else.
    """
    place = Path(folder)
    try:
        config = json.loads((place / CONFIG).read_text(encoding="utf-8"))
        weights = {name: aligned(w) for name, w in load_file(place / WEIGHTS).items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{place}: cannot read a {what}: {error}") from error
    if not isinstance(config, dict) or config.get("format") != f"specfit {what}":
        raise CheckpointError(
            f"{place}: {CONFIG} does not describe a specfit {what}; {maker} makes one"
        )
    if config.get("version") != version:
        raise CheckpointError(
            f"{place}: version {config.get('version')!r} of a specfit {what}; this specfit reads "
            f"version {version}"
        )
    return config, weights
