"""Read ``.npz`` archives against a declared list of arrays, without ever unpickling."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

# All that zipfile, zlib and numpy.lib.format raise on bytes that are not what they claim to be.
_UNREADABLE = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    TypeError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_REALS = (*_INTEGERS, "float16", "float32", "float64")


@dataclass(frozen=True)
class Field:
    """One array of an archive format.

    Attributes
    ----------
    name : str
    dtypes : tuple of str
        Allowed dtypes, the usual one first. Either byte order is read.
    shape : tuple of str
        Names of the dimensions, each perhaps with "+1"; () for a scalar. A name's first use sets
        its size, later uses must agree.
    sets : str
        For a scalar: the dimension that its value gives.
    optional : bool
    """

    name: str
    dtypes: tuple[str, ...]
    shape: tuple[str, ...] = ()
    sets: str = ""
    optional: bool = False

    @classmethod
    def count(cls, name: str, sets: str) -> Field:
        """Return the field of an integer scalar that gives the dimension ``sets``."""
        return cls(name, _INTEGERS, sets=sets)

    @classmethod
    def real(cls, name: str) -> Field:
        """Return the field of a real scalar."""
        return cls(name, _REALS)


def read_archive(
    path: str | os.PathLike[str], fields: Sequence[Field], kind: str, writer: str
) -> dict[str, NDArray[Any]]:
    """Read an archive that holds exactly ``fields``.

    Parameters
    ----------
    path : str or path-like
    fields : sequence of Field
    kind : str
        What the file is, for messages: "an instance file".
    writer : str
        The function that writes such files, for messages.

    Returns
    -------
    dict of str to ndarray
        In native byte order; optional arrays that are absent are left out.

    Raises
    ------
    InvalidInputError
        If the file is truncated, foreign or holds pickled objects, or an array is missing, not
        known or of another dtype or shape. The message names the file, the array and the remedy.
    OSError
        If the file cannot be opened.
    """
    with open(path, "rb") as handle:
        _require_zip(path, handle.read(4), kind, writer)
        handle.seek(0)
        try:
            with np.load(handle, allow_pickle=False) as archive:
                names = list(archive.files)
                _check_names(path, names, fields, kind)
                arrays = {name: _member(path, archive, name, writer) for name in names}
        except InvalidInputError:
            raise
        except _UNREADABLE as error:
            raise _damaged(path, error, writer) from error
    sizes: dict[str, tuple[int, str]] = {}
    return {
        field.name: _checked(path, field, arrays[field.name], sizes)
        for field in fields
        if field.name in arrays
    }


@contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before the message of an InvalidInputError raised inside."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{os.fspath(path)}: {error}") from error


def _require_zip(path: str | os.PathLike[str], head: bytes, kind: str, writer: str) -> None:
    if head[:2] == b"PK":
        return
    where = os.fspath(path)
    if not head:
        raise InvalidInputError(f"{where}: the file is empty; write it again with {writer}")
    if head[:1] == b"\x80":
        raise InvalidInputError(
            f"{where}: the file is a Python pickle, which is never loaded because it can run code; "
            f"write {kind} with {writer}"
        )
    raise InvalidInputError(
        f"{where}: the file is no .npz archive but something else (it starts with {head!r}); "
        f"write {kind} with {writer}"
    )


def _damaged(path: str | os.PathLike[str], error: BaseException, writer: str) -> InvalidInputError:
    return InvalidInputError(
        f"{os.fspath(path)}: the archive is truncated or damaged ({error}); copy it again or write "
        f"it with {writer}"
    )


def _check_names(
    path: str | os.PathLike[str], names: list[str], fields: Sequence[Field], kind: str
) -> None:
    where = os.fspath(path)
    known = [field.name for field in fields]
    holds = f"{kind} holds the arrays {', '.join(known)}"
    missing = [f.name for f in fields if not f.optional and f.name not in names]
    if missing:
        raise InvalidInputError(f"{where}: lacks {_listed(missing)}; {holds}")
    extra = [name for name in names if name not in known]
    if extra:
        raise InvalidInputError(
            f"{where}: has {_listed(extra)} that the format does not know; {holds}: leave the rest "
            "out"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"{where}: holds {_listed(twice)} more than once; keep one of each")


def _member(path: str | os.PathLike[str], archive: Any, name: str, writer: str) -> NDArray[Any]:
    where = os.fspath(path)
    try:
        array = archive[name]
    except _UNREADABLE as error:
        if "allow_pickle" in str(error):
            raise InvalidInputError(
                f"{where}: array {name!r} holds pickled Python objects, which are never loaded "
                "because they can run code; save it as a plain numeric array"
            ) from error
        raise InvalidInputError(
            f"{where}: array {name!r} is truncated or damaged ({error}); copy the file again or "
            f"write it with {writer}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(
            f"{where}: member {name!r} is no NumPy array; write the file with {writer}"
        )
    return array


def _checked(
    path: str | os.PathLike[str],
    field: Field,
    array: NDArray[Any],
    sizes: dict[str, tuple[int, str]],
) -> NDArray[Any]:
    where, name = os.fspath(path), field.name
    native = array.dtype.newbyteorder("=")
    if native.name not in field.dtypes:
        usual = field.dtypes[0]
        wanted = "an integer" if field.dtypes == _INTEGERS else " or ".join(field.dtypes)
        if field.dtypes == _REALS:
            wanted, usual = "a real number", "float64"
        raise InvalidInputError(
            f"{where}: array {name!r} has dtype {array.dtype} but must be {wanted}; convert it "
            f"with numpy.asarray({name}, dtype=numpy.{'int64' if usual == 'int8' else usual})"
        )
    if array.ndim != len(field.shape):
        shape = f"({', '.join(field.shape)})" if field.shape else "() (a scalar)"
        raise InvalidInputError(
            f"{where}: array {name!r} has shape {array.shape} but must have shape {shape}"
        )
    for axis, (dimension, size) in enumerate(zip(field.shape, array.shape, strict=True)):
        letter, _, plus = dimension.partition("+")
        more = int(plus or 0)
        found, origin = sizes.setdefault(letter, (size - more, name))
        if size != found + more:
            raise InvalidInputError(
                f"{where}: array {name!r} has shape {array.shape} but {origin} says that "
                f"{letter} = {found}, so axis {axis} must have {found + more} entries "
                f"(shape ({', '.join(field.shape)}))"
            )
    if field.sets:
        sizes[field.sets] = (int(array), name)
    return np.ascontiguousarray(array, dtype=native) if array.ndim else array.astype(native)


def _listed(names: list[str]) -> str:
    quoted = ", ".join(repr(name) for name in names)
    return f"the array {quoted}" if len(names) == 1 else f"the arrays {quoted}"
