"""Folders that hold a predictor: ``config.json``, ``model.safetensors`` and a card."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from specfit_opt.checks import Kind, checked, shown
from specfit_opt.files.atomic import named_in_errors
from specfit_opt.files.strict_json import read_json
from specfit_opt.schema import Record

from ..checkpoint import Checkpoint
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
        If a file cannot be written; it names the file.
    """
    check_new_folder(folder)
    place = Path(folder)
    partial = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    contents = {
        WEIGHTS: save({k: w.contiguous().cpu() for k, w in weights.items()}),
        CARD: card.encode(),
        CONFIG: f"{json.dumps(config, indent=2)}\n".encode(),
    }
    try:
        partial.mkdir()
        for name, content in contents.items():
            with named_in_errors(place / name, os.fspath(partial / name)):
                (partial / name).write_bytes(content)
        if place.exists():
            place.rmdir()
        partial.rename(place)
    finally:
        # After an error or an interrupt nothing half-written may stay behind.
        shutil.rmtree(partial, ignore_errors=True)


def read_folder(
    folder: str | os.PathLike[str],
    what: str,
    version: int,
    maker: str,
    fields: Mapping[str, Kind],
) -> tuple[dict[str, Any], Checkpoint]:
    """Return the configuration of a folder, and its weights, found but not read.

    Parameters
    ----------
    folder : path
    what : str
        Such as ``"router network"``; its ``format`` is ``"specfit"`` and that.
    version : int
        The version that is read.
    maker : str
        The command that makes one.
    fields : mapping of str to Kind
        What the configuration must hold; other keys are let pass.

    Raises
    ------
    CheckpointError
        If a file is missing or unreadable, or is something else.
    """
    place = Path(folder)
    path = place / CONFIG
    try:
        config = read_json(path, error=CheckpointError)
        stored = Checkpoint(place)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: cannot read a {what}: {error}") from error
    if config.get("format") != f"specfit {what}":
        raise CheckpointError(
            f"{place}: {CONFIG} does not describe a specfit {what}; {maker} makes one"
        )
    if config.get("version") != version or config["version"] is True:
        raise CheckpointError(
            f"{place}: version {shown(config.get('version'))} of a specfit {what}; this specfit "
            f"reads version {version}"
        )
    try:
        config = checked(config, Record(fields, others=True))
    except InvalidInputError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return config, stored


def read_weights(
    folder: Path, stored: Checkpoint, wanted: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Return the weights of a folder in memory of their own, in float32.

    Parameters
    ----------
    folder : Path
        For messages.
    stored : Checkpoint
        From `read_folder`.
    wanted : mapping of str to sequence of int
        The shape of every tensor by name, by the configuration; compared before anything is read.

    Raises
    ------
    CheckpointError
        If a tensor is missing, left over, of another shape, not floating point or not finite.
    """
    have = {name: tensor.shape for name, tensor in stored.tensors.items()}
    for name in sorted(have.keys() | wanted.keys()):
        need = tuple(wanted[name]) if name in wanted else None
        if have.get(name) != need:
            raise CheckpointError(
                f"{folder}: {WEIGHTS} holds {name} of shape {have.get(name)}, {CONFIG} asks for "
                f"{need}"
            )
    weights = {}
    for name, tensor in stored.read(wanted):
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{folder}: {WEIGHTS}: {name} holds NaN, infinity or integers")
        weights[name] = tensor.float()
    return weights
