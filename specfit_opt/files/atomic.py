"""Write a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path``; replace ``path`` by it when the block succeeds.

    Parameters
    ----------
    path : str or path-like
        The file to write. A symbolic link is followed, an existing file replaced.
    mode : {"wb", "w"}
        Bytes, or text in UTF-8 whose lines end in a line feed on every system.

    Yields
    ------
    file object
        If the block raises, the temporary file is removed and ``path`` is as it was.

    Raises
    ------
    OSError
        If the directory does not exist or cannot be written.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with open(temporary, mode.replace("w", "x"), **text) as handle:  # type: ignore[call-overload]
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except BaseException:
        # Also on an interrupt: a half-written file must not stay behind.
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
