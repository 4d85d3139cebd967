"""Read ``.npz`` archives against a declared list of arrays, without ever unpickling.

Nothing is unpacked before it is known to be what was declared: the directory of the archive, at
most 1 MiB, gives the members and their sizes, and every member begins with the dtype and shape of
its array. Refused are, with the file, the array and the remedy: files of more than 4 GiB, members
that the format does not know, that come twice, are encrypted, or are packed otherwise than stored
or deflated; sizes that contradict each other, the dtype and shape, or what deflate can do; and
archives that unpack to more than 128 MiB and more than 16 times their size.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..checks import shown
from ..errors import InvalidInputError
from .regular_file import open_regular, printable

#: Bytes of a file; of its directory; of what it unpacks to, unless the file is large itself.
MAX_BYTES, MAX_DIRECTORY, MAX_UNPACKED = 2**32, 2**20, 2**27
#: How often its size a large file may unpack to.
MAX_RATIO = 16
#: What deflate cannot exceed: 258 bytes for two bits, and a block's header.
_DEFLATE_RATIO = 1032

# What an array begins with, as NumPy and others write it. A structured dtype is no field's.
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\{'descr': ?'([<>|=]?[?bBhHiIuUlLqQefdFDcSVmMO][0-9]{0,9})',"
    r" ?'fortran_order': ?(True|False),"
    r" ?'shape': ?\(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), ?\}\s*"
)
_MAX_HEADER = 4096

# All that zipfile and zlib raise on bytes that are not what they claim to be.
_UNREADABLE = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    IndexError,
    TypeError,
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
    with open_regular(path, MAX_BYTES) as handle, named(path):
        _require_zip(handle.read(4), kind, writer)
        try:
            with zipfile.ZipFile(_Directory(handle)) as archive:
                members = _members(archive, fields, kind, writer)
                _check_sizes(members, os.fstat(handle.fileno()).st_size)
                sizes: dict[str, tuple[int, str]] = {}
                return {
                    field.name: _array(archive, members[field.name], field, sizes, writer)
                    for field in fields
                    if field.name in members
                }
        except InvalidInputError:
            raise
        except _UNREADABLE as error:
            raise InvalidInputError(
                f"the archive is truncated or damaged ({str(error)[:200]}); copy it again "
                f"or write it with {writer}"
            ) from error


@contextmanager
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file's name before the message of an InvalidInputError raised inside."""
    try:
        yield
    except InvalidInputError as error:
        raise InvalidInputError(f"{printable(path)}: {error}") from error


class _Directory:
    """An archive as zipfile may see it: what it reads at a time is bounded.

    The directory is read in one piece, whose size the file tells.
    """

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.seek, self.tell = handle.seek, handle.tell
        self.seekable, self.close = handle.seekable, handle.close

    def read(self, n: int = -1) -> bytes:
        data = self._handle.read(MAX_DIRECTORY + 1 if n < 0 or n > MAX_DIRECTORY else n)
        if len(data) > MAX_DIRECTORY:
            raise InvalidInputError(
                f"the archive's directory has more than {MAX_DIRECTORY} bytes; the format has few "
                "arrays"
            )
        return data


def _require_zip(head: bytes, kind: str, writer: str) -> None:
    if head[:2] == b"PK":
        return
    if not head:
        raise InvalidInputError(f"the file is empty; write it again with {writer}")
    if head[:1] == b"\x80":
        raise InvalidInputError(
            "the file is a Python pickle, which is never loaded because it can run code; write "
            f"{kind} with {writer}"
        )
    raise InvalidInputError(
        f"the file is no .npz archive but something else (it starts with {head!r}); write {kind} "
        f"with {writer}"
    )


def _members(
    archive: zipfile.ZipFile, fields: Sequence[Field], kind: str, writer: str
) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the name of their array."""
    members = archive.infolist()
    names = [member.filename.removesuffix(".npy") for member in members]
    known = [field.name for field in fields]
    holds = f"{kind} holds the arrays {', '.join(known)}"
    missing = [f.name for f in fields if not f.optional and f.name not in names]
    if missing:
        raise InvalidInputError(f"lacks {_listed(missing)}; {holds}")
    extra = [name for name in names if name not in known]
    if extra:
        raise InvalidInputError(
            f"has {_listed(extra)} that the format does not know; {holds}: leave the rest out"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInputError(f"holds {_listed(twice)} more than once; keep one of each")
    for name, member in zip(names, members, strict=True):
        if not member.filename.endswith(".npy"):
            raise InvalidInputError(
                f"member {name!r} is no NumPy array; write the file with {writer}"
            )
        packed = member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if packed or member.flag_bits & 1:
            how = "encrypted" if member.flag_bits & 1 else "packed otherwise than with deflate"
            raise InvalidInputError(f"array {name!r} is {how}; write the file with {writer}")
    return dict(zip(names, members, strict=True))


def _check_sizes(members: dict[str, zipfile.ZipInfo], size: int) -> None:
    """Hold what the directory says against the file's ``size`` and the bounds."""
    for name, member in members.items():
        most = member.compress_size * (_DEFLATE_RATIO if member.compress_type else 1)
        if member.compress_size > size or member.file_size > most:
            raise InvalidInputError(
                f"array {name!r} is said to have {member.file_size} bytes, packed into "
                f"{member.compress_size}; the file has {size}, so it is truncated or damaged"
            )
    unpacked = sum(member.file_size for member in members.values())
    most = max(MAX_UNPACKED, MAX_RATIO * size)
    if unpacked > most:
        raise InvalidInputError(
            f"the archive unpacks to {unpacked} bytes; of a file of {size} bytes at most {most} "
            "are read"
        )


def _array(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    field: Field,
    sizes: dict[str, tuple[int, str]],
    writer: str,
) -> NDArray[Any]:
    name = field.name
    try:
        with archive.open(member) as stream:
            dtype, shape, fortran, start = _header(stream, name, writer)
            _check_declared(field, dtype, shape, sizes)
            n_bytes = math.prod(shape) * dtype.itemsize
            if start + n_bytes != member.file_size:
                raise InvalidInputError(
                    f"array {name!r} of dtype {dtype} and shape {shape} has {n_bytes} bytes, but "
                    f"the archive holds {member.file_size - start} for it; write the file with "
                    f"{writer}"
                )
            flat = np.empty(math.prod(shape), dtype)
            _fill(stream, flat.data.cast("B") if flat.size else memoryview(b""))
            array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    except InvalidInputError:
        raise
    except _UNREADABLE as error:
        raise InvalidInputError(
            f"array {name!r} is truncated or damaged ({str(error)[:200]}); copy the file "
            f"again or write it with {writer}"
        ) from error
    if field.sets:
        sizes[field.sets] = (int(array), name)
    native = dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype=native) if array.ndim else array.astype(native)


def _header(
    stream: IO[bytes], name: str, writer: str
) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Return dtype, shape, whether it is in Fortran's order, and the bytes before the data.

    NumPy's own reader evaluates the header as Python.
    """
    magic = stream.read(len(_MAGIC) + 2)
    width = 2 if magic[-2:-1] == b"\x01" else 4
    length = int.from_bytes(stream.read(width), "little")
    if not magic.startswith(_MAGIC) or length > _MAX_HEADER:
        raise InvalidInputError(f"member {name!r} is no NumPy array; write the file with {writer}")
    text = stream.read(length).decode("latin-1")
    found = _HEADER.fullmatch(text)
    if found is None:
        raise InvalidInputError(
            f"array {name!r} does not begin with a plain dtype and a shape; write the file with "
            f"{writer}"
        )
    if "O" in found[1]:
        raise InvalidInputError(
            f"array {name!r} holds pickled Python objects, which are never loaded because they can "
            "run code; save it as a plain numeric array"
        )
    shape = tuple(int(size) for size in re.findall(r"[0-9]+", found[3]))
    return np.dtype(found[1]), shape, found[2] == "True", len(magic) + width + length


def _fill(stream: IO[bytes], view: memoryview) -> None:
    at = 0
    while at < len(view):
        piece = stream.read(min(2**20, len(view) - at))
        if not piece:
            raise EOFError(f"{len(view)} bytes expected, {at} found")
        view[at : at + len(piece)] = piece
        at += len(piece)
    stream.read(1)  # nothing is left; zipfile compares the checksum only here


def _check_declared(
    field: Field, dtype: np.dtype[Any], shape: tuple[int, ...], sizes: dict[str, tuple[int, str]]
) -> None:
    name = field.name
    if dtype.newbyteorder("=").name not in field.dtypes:
        usual = field.dtypes[0]
        wanted = "an integer" if field.dtypes == _INTEGERS else " or ".join(field.dtypes)
        if field.dtypes == _REALS:
            wanted, usual = "a real number", "float64"
        raise InvalidInputError(
            f"array {name!r} has dtype {dtype} but must be {wanted}; convert it "
            f"with numpy.asarray({name}, dtype=numpy.{'int64' if usual == 'int8' else usual})"
        )
    if len(shape) != len(field.shape):
        wanted = f"({', '.join(field.shape)})" if field.shape else "() (a scalar)"
        raise InvalidInputError(f"array {name!r} has shape {shape} but must have shape {wanted}")
    for axis, (dimension, size) in enumerate(zip(field.shape, shape, strict=True)):
        letter, _, plus = dimension.partition("+")
        more = int(plus or 0)
        found, origin = sizes.setdefault(letter, (size - more, name))
        if size != found + more:
            raise InvalidInputError(
                f"array {name!r} has shape {shape} but {origin} says that "
                f"{letter} = {found}, so axis {axis} must have {found + more} entries "
                f"(shape ({', '.join(field.shape)}))"
            )


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - 8} more"] if len(names) > 8 else []
    quoted = ", ".join([*map(shown, names[:8]), *more])
    return f"the array {quoted}" if len(names) == 1 else f"the arrays {quoted}"
