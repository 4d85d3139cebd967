"""Mutations of archives of arrays: members, headers, dtypes, shapes, values."""

from __future__ import annotations

import io
import random
import zipfile
from typing import Any

import numpy as np

_DTYPES = ("<f8", ">i4", "|O", "<c16", "|S3", "<U5", "<f2", "|b1", "<i8", "|V8", "<M8[s]", "x9")
_SHAPES = (
    "()",
    "(0,)",
    "(-1,)",
    "(2147483647, 2147483647)",
    "(99999999999999999999,)",
    "(1000000000,)",
    "(3, 0, 1000000000)",
    "(1.5,)",
    "((3,),)",
    "(" * 300 + ")" * 300,
    "[x for x in ()]",
)
_NUMBERS = (-1, 0, 1, 2**15, 2**31 - 1, -(2**31), float("nan"), float("inf"), 1e30, 1e300, 5e-324)


def mutate_npz(content: bytes, rng: random.Random) -> bytes:
    """Return an archive like ``content`` with one member or array changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    i = rng.randrange(len(members))
    name, data = members[i]
    method = zipfile.ZIP_DEFLATED
    action = rng.randrange(8)
    if action == 0:
        members[i] = (rng.choice(["", "x.npy", "../x.npy", name[:-4], name.upper()]), data)
    elif action == 1:
        del members[i]
    elif action == 2:
        members.append((name if rng.random() < 0.5 else "more.npy", data))
    elif action == 3:
        method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    elif action == 4:
        members[i] = (name, _with_header(data, rng))
    elif action == 5:
        members[i] = (name, _npy(_reshaped(data, rng)))
    elif action == 6:
        other = rng.choice(members)
        members[i] = (name, other[1])
    else:
        members[i] = (name, _npy(_revalued(data, rng)))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)  # a name may come twice, without a warning
            info.compress_type = method
            archive.NameToInfo.pop(name, None)
            archive.writestr(info, data)
    return stream.getvalue()


def _array(data: bytes) -> np.ndarray[Any, Any]:
    return np.load(io.BytesIO(data))


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _with_header(data: bytes, rng: random.Random) -> bytes:
    array = _array(data)
    descr, shape = array.dtype.str, str(array.shape)
    if rng.random() < 0.5:
        descr = rng.choice(_DTYPES)
    else:
        shape = rng.choice(_SHAPES)
    order = rng.choice(["True", "False", "0", "x"])
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    version = rng.choice([b"\1\0", b"\2\0", b"\3\0", b"\7\7"])
    width = 2 if version == b"\1\0" else 4
    length = len(text) if rng.random() < 0.8 else 256**width - 1
    return b"\x93NUMPY" + version + length.to_bytes(width, "little") + text + array.tobytes()


def _reshaped(data: bytes, rng: random.Random) -> np.ndarray[Any, Any]:
    array = _array(data)
    action = rng.randrange(5)
    if action == 0:
        return array[..., None]
    if action == 1 and array.ndim:
        return array[rng.randrange(len(array) + 1) :]
    if action == 2:
        return array.astype(rng.choice(["<f8", "<i8", "<f4", "<i2", "?", ">i4"]))
    if action == 3:
        return np.asfortranarray(array.T)
    return np.repeat(array.reshape(-1), rng.choice([0, 2, 1000]))


def _revalued(data: bytes, rng: random.Random) -> np.ndarray[Any, Any]:
    array = np.array(_array(data))
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        for _ in range(rng.choice([1, 1, 3])):
            if not flat.size:
                break
            number = rng.choice(_NUMBERS)
            if flat.dtype.kind in "iu" and not np.isfinite(number):
                number = -1
            if flat.dtype.kind in "iu":
                info = np.iinfo(flat.dtype)
                number = int(min(max(number, info.min), info.max))
            flat[rng.randrange(flat.size)] = number
        if rng.random() < 0.2:
            rng.shuffle(flat)
    return flat.reshape(array.shape)
