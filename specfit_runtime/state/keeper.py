"""Reads what earlier processes learned, and writes what this one did."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specfit_opt.checks import shown

from ..errors import InvalidInputError
from .folder import prune, state_folder
from .kept_state import KeptState, load_kept_state
from .setup_key import file_name


class StateKeeper:
    """Keeps what decoding learns in a folder, a file for each setup.

    Several processes may use the folder at once: a file is replaced whole, so that the last one
    that ends a text leaves what it knows, and no lock is held. What cannot be read is not used, and
    what cannot be written is not kept: both are warnings and never errors.

    Parameters
    ----------
    state : bool, str or path
        True: the user's own folder, `state_folder`; a path: that folder; False: nothing is kept.

    Attributes
    ----------
    folder : Path or None

    Raises
    ------
    InvalidInputError
        If ``state`` is something else.
    """

    def __init__(self, state: bool | str | os.PathLike[str]) -> None:
        self.folder: Path | None
        self._writes = True
        if isinstance(state, bool):
            self.folder = state_folder() if state else None
        elif isinstance(state, (str, os.PathLike)) and os.fspath(state):
            self.folder = Path(os.path.abspath(os.path.expanduser(os.fspath(state))))
        else:
            raise InvalidInputError(
                f"state must be True, False or the name of a folder, got {shown(state)}"
            )

    def load(self, key: Mapping[str, Any]) -> KeptState | None:
        """Return what is kept for ``key``, see `setup_key`; None if nothing is."""
        if self.folder is None:
            return None
        path = self.folder / file_name(key)
        try:
            return load_kept_state(path, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, InvalidInputError) as error:
            self.discard(error)
            return None

    def discard(self, error: Exception) -> None:
        """Say that what is kept is not used; the next text that ends replaces it."""
        warnings.warn(
            f"what was learned in earlier runs is not used: {error}", stacklevel=2
        )

    def save(self, key: Mapping[str, Any], kept: KeptState) -> None:
        """Keep a state for ``key``."""
        if self.folder is None or not self._writes:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept.save(self.folder / file_name(key), key)
        except OSError as error:
            self._writes = False
            warnings.warn(
                f"what was learned is not kept for later runs: {error}; name another folder in "
                "XDG_STATE_HOME, or do without",
                stacklevel=2,
            )
            return
        prune(self.folder)
