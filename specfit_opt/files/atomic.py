"""Write a file whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

from .regular_file import printable


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path``; replace ``path`` by it when the block succeeds.

    Parameters
    ----------
    path : str or path-like
        The file to write. A symbolic link is followed, an existing file replaced, with the
        permissions that it had.
    mode : {"wb", "w"}
        Bytes, or text in UTF-8 whose lines end in a line feed on every system.

    Yields
    ------
    file object
        If the block raises, or is interrupted at whatever point, the temporary file is removed and
        ``path`` is as it was.

    Raises
    ------
    OSError
        If ``path`` is a folder, a pipe or a device, its folder does not exist or cannot be written,
        or the disk is full. It names ``path``.
    """
    with named_in_errors(path):
        target = os.path.realpath(path)
        permissions = _permissions(target)
    folder, name = os.path.split(target)
    # The name is known before the file is there, so that an interrupt between the two leaves
    # nothing. A name can have 255 bytes.
    temporary = os.path.join(folder, f".{name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        with named_in_errors(path, temporary):
            with open(temporary, mode.replace("w", "x"), **text) as handle:  # type: ignore[call-overload]
                if permissions is not None:
                    os.fchmod(handle.fileno(), permissions)
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, target)
    finally:
        try:
            _remove(temporary)
        finally:
            _remove(temporary)  # where the first was interrupted before it began


@contextmanager
def named_in_errors(path: str | os.PathLike[str], temporary: str | None = None) -> Iterator[None]:
    """Give an error of the system the name of the file that the user wants written.

    The system names a file only where a name was looked up, not where writing failed; and then it
    may be the temporary one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, temporary):
            raise
        reason = f"cannot be written: {error.strerror or error}"
        raise OSError(error.errno, reason, printable(path)) from error
    except (ValueError, TypeError) as error:
        if temporary is not None:  # raised by what is written
            raise
        reason = f"is no name of a file: {error}"
        raise OSError(errno.EINVAL, reason, printable(path)) from None


def _permissions(target: str) -> int | None:
    """Return those of the file that is there, or None where none is."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        # Replacing it would destroy the device; a pipe might never be read.
        raise OSError(errno.EINVAL, "it is a pipe, a device or a socket; name a file")
    return stat.S_IMODE(status.st_mode)


def _remove(temporary: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(temporary)
