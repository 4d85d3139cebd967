"""Open what a user names as a file, if it is one and not too large."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ..errors import InvalidInputError


@contextmanager
def open_regular(
    path: str | os.PathLike[str], limit: int, error: type[Exception] | None = None
) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``limit`` bytes for reading.

    A pipe, a device or a link to one is refused without waiting for what it may give.

    Parameters
    ----------
    path : str or path-like
    limit : int
        Bytes. The caller should not read more either: a file may grow.
    error : type of Exception, optional
        The class of every failure. Default: InvalidInputError for a file that is refused, and
        OSError, as the system raises it, where it cannot be opened.

    Yields
    ------
    file object
        Whose ``fileno`` gives the size.

    Raises
    ------
    InvalidInputError, OSError, or ``error``
        Names the file.
    """
    refuse = error or InvalidInputError
    name = printable(path)
    if not isinstance(path, (str, bytes, os.PathLike)):  # a number would be an open descriptor
        raise refuse(f"{name}: is no name of a file")
    try:
        handle = open(path, "rb", opener=_open)  # noqa: SIM115  # closed below
    except OSError as problem:
        if error is None:
            raise
        raise error(f"{name}: cannot be read: {problem.strerror or problem}") from problem
    except (ValueError, TypeError) as problem:  # a null byte, a lone surrogate, a list
        raise refuse(f"{name}: is no name of a file: {problem}") from None
    with handle:
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise refuse(f"{name}: is a pipe, a device or a socket; copy it into a file first")
        if status.st_size > limit:
            raise refuse(_too_large(name, limit, status.st_size))
        try:
            yield handle
        except OSError as problem:
            # Reading failed: the system names no file there.
            if problem.filename is not None:
                raise
            reason = f"cannot be read: {problem.strerror or problem}"
            if error is not None:
                raise error(f"{name}: {reason}") from problem
            raise OSError(problem.errno, reason, name) from problem


def read_regular(
    path: str | os.PathLike[str], limit: int, error: type[Exception] | None = None
) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; see :func:`open_regular`."""
    with open_regular(path, limit, error) as handle:
        content = handle.read(limit + 1)
    if len(content) > limit:  # it grew, or is one whose size the system does not tell
        raise (error or InvalidInputError)(_too_large(printable(path), limit, len(content)))
    return content


def printable(path: object) -> str:
    """Return a path as messages show it, whatever bytes it is made of."""
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        return repr(path)
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _open(path: str, flags: int) -> int:
    # Without O_NONBLOCK a pipe that nobody writes to would be waited for.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _too_large(name: str, limit: int, size: int) -> str:
    return f"{name}: has {size} bytes or more; at most {limit} are read"
