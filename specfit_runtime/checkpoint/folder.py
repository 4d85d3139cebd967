"""Finds the folder of a checkpoint: one on this machine, or one of the hub's in its cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CheckpointError, InvalidInputError

# "name" or "owner/name", as the hub allows.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def checkpoint_folder(model: str | os.PathLike[str], *, revision: str | None = None) -> Path:
    """Return the folder that holds a model's checkpoint.

    Parameters
    ----------
    model : path or str
        A folder or, if there is none of that name, a model id of the Hugging Face Hub, whose files
        are then fetched into the hub's own cache unless they are there.
    revision : str, optional
        Branch, tag or commit of a hub model.

    Raises
    ------
    InvalidInputError
        If it is neither a folder nor could be a model id.
    CheckpointError
        If the hub does not give the model.
    """
    try:
        name = os.fspath(model)
    except TypeError:
        name = None
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"model must be a folder or a hub model id, got {model!r}")
    # At once, as the working directory may be another one when a file is opened again.
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if os.path.isdir(path):
        if revision is not None:
            raise InvalidInputError(f"revision is for models of the hub, and {path} is a folder")
        return path
    if os.path.exists(path):
        raise InvalidInputError(
            f"{path} is a file; give the folder that holds config.json and the safetensors files"
        )
    if not _HUB_ID.fullmatch(name):
        raise InvalidInputError(f"there is no folder {path}")
    return _fetch(name, revision)


def _fetch(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name,
            revision=revision,
            # What lies in subfolders are other formats of the same weights.
            allow_patterns=["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"],
            ignore_patterns=["*/*"],
        )
    except Exception as error:
        # Whatever went wrong on the way (offline, no such model, no access, a full disk) is said in
        # the hub's own words.
        raise CheckpointError(
            f"there is no folder {name!r}, and the hub gives no model of that name: "
            f"{type(error).__name__}: {_short(error)}; give a folder, or go online once to "
            "fetch the model"
        ) from error
    return Path(found)


def _short(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if len(words) <= 300 else f"{words[:300]}..."
