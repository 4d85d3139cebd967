"""The folder that holds what was learned: where it is, and how much it may hold."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: Files in the folder; of more, those go that were written longest ago.
MOST_FILES = 64


def state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/specfit``, or ``~/.local/state/specfit`` where that is not set.

    A relative ``XDG_STATE_HOME`` counts as not set, as its specification says.
    """
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.local/state"))
    return base / "specfit"


def prune(folder: Path) -> None:
    """Remove the files that were written longest ago, if there are too many.

    Another process may remove them at the same time.
    """
    written = []
    for path in folder.glob("*.npz"):
        with suppress(OSError):
            written.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(written)[: max(0, len(written) - MOST_FILES)]:
        with suppress(OSError):
            path.unlink()
