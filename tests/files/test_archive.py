"""Archives that are not what they say: refused before anything is unpacked."""

from __future__ import annotations

import io
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specfit_opt.errors import InvalidInputError
from specfit_opt.files import archive
from specfit_opt.files.archive import Field, read_archive

FIELDS = (
    Field.count("count", sets="n"),
    Field("values", ("float64",), ("n",)),
    Field("flags", ("bool",), ("n",), optional=True),
)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(descr: str = "<f8", shape: str = "(3,)", fortran: str = "False") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


COUNT, VALUES = npy(np.int64(3)), npy(np.arange(3.0))


def packed(
    values: bytes = VALUES, method: int = zipfile.ZIP_DEFLATED, more: dict[str, bytes] | None = None
) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as out:
        for name, content in {"count.npy": COUNT, "values.npy": values, **(more or {})}.items():
            out.writestr(name, content)
    return stream.getvalue()


def read(tmp_path: Path, content: bytes) -> dict[str, np.ndarray]:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    return read_archive(path, FIELDS, "a file of the test", "the test")


def test_what_numpy_writes_is_read(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        arrays = read(tmp_path, packed(method=method, more={"flags.npy": npy(np.ones(3, bool))}))
        assert arrays["values"].tolist() == [0, 1, 2]
        assert arrays["flags"].tolist() == [True] * 3
    empty = packed(npy(np.zeros(0)), more={"count.npy": npy(np.int64(0))})
    assert read(tmp_path, empty)["values"].shape == (0,)


def swapped(old: bytes, new: bytes, which: int = 0) -> Callable[[bytes], bytes]:
    """Return a change of one field of the archive's directory, by its place after a signature."""

    def change(content: bytes) -> bytes:
        assert content.count(old) > which
        at = -1
        for _ in range(which + 1):
            at = content.index(old, at + 1)
        return content[:at] + new + content[at + len(old) :]

    return change


def directory(offset: int, new: bytes) -> Callable[[bytes], bytes]:
    """Return a change of every entry of the directory."""

    def change(content: bytes) -> bytes:
        found = bytearray(content)
        at = found.find(b"PK\x01\x02")
        while at >= 0:
            found[at + offset : at + offset + len(new)] = new
            at = found.find(b"PK\x01\x02", at + 1)
        return bytes(found)

    return change


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(method=zipfile.ZIP_LZMA), "array 'count' is packed otherwise than with deflate"),
        (packed(method=zipfile.ZIP_BZIP2), "array 'count' is packed otherwise than with deflate"),
        (directory(8, b"\x01\x00")(packed()), "array 'count' is encrypted"),
        (directory(24, b"\xff\xff\xff\x7f")(packed()), "is said to have 2147483647 bytes, packed"),
        (directory(20, b"\xff\xff\xff\x7f")(packed()), "packed into 2147483647; the file has"),
        (directory(24, b"\x10\0\0\0")(packed()), "'count' is truncated or damaged|bytes, but the"),
        (directory(42, b"\xff\xff\xff\x7f")(packed()), "truncated or damaged"),
        (packed()[:-30], "truncated or damaged"),
        (packed(VALUES[:-8]), r"\(3,\) has 24 bytes, but the archive holds 16 for it"),
        (packed(VALUES + b"\0"), "has 24 bytes, but the archive holds 25 for it"),
        (packed(b""), "member 'values' is no NumPy array"),
        (packed(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), "member 'values' is no NumPy array"),
        (packed(header(shape="(-3,)")), "does not begin with a plain dtype and a shape"),
        (packed(header(shape="(3.0,)")), "does not begin with a plain dtype and a shape"),
        (packed(header(shape=f"({'9' * 999},)")), "does not begin with a plain dtype"),
        (packed(header(shape="(" * 900 + "3" + ")" * 900)), "does not begin with a plain dtype"),
        (packed(header(shape="[3 for _ in ()]")), "does not begin with a plain dtype"),
        (packed(header("|O", "(3,)") + b"\0" * 24), "holds pickled Python objects"),
        (packed(header("<f8", "(999999999999999999,)")), "so axis 0 must have 3 entries"),
        (packed(header("<f8", "(3, 3)") + b"\0" * 72), r"shape \(3, 3\) but must have shape \(n\)"),
        (packed(header("|V8")), "has dtype |V8 but must be float64"),
        (packed(more={"other.npy": VALUES}), "has the array 'other' that the format does not"),
        (packed(more={"../values.npy": VALUES}), "has the array '../values' that the format"),
        (packed(more={"flags": b"x"}), "member 'flags' is no NumPy array"),
        (packed(more={"values": b"x"}), "holds the array 'values' more than once"),
        (swapped(VALUES[-8:], b"\0" * 8)(packed(method=zipfile.ZIP_STORED)), "Bad CRC-32"),
        (b"PK\x05\x06" + b"\0" * 18, "lacks the arrays 'count', 'values'"),
    ],
    ids=range(27),
)
def test_refused(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'a.npz'}: ")


def refused_within(megabytes: float, tmp_path: Path, content: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=message):
            read(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


def test_what_unpacks_to_more_than_the_bound_is_not_unpacked(tmp_path: Path) -> None:
    bomb = header(shape="(25000000,)") + bytes(200_000_000)
    content = packed(bomb, more={"count.npy": npy(np.int64(25_000_000))})
    assert len(content) < 300_000
    del bomb
    refused_within(5, tmp_path, content, "the archive unpacks to 200000.* at most 134217728 are")


def test_a_large_file_may_unpack_to_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 10)
    assert read(tmp_path, packed())["values"].size == 3


def test_a_directory_without_end(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as out:
        for i in range(20_000):
            out.writestr(f"{i:060}", b"")
    refused_within(5, tmp_path, stream.getvalue(), "directory has more than 1048576 bytes")


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(InvalidInputError, match="is a pipe, a device or a socket"):
        read_archive(tmp_path / "a.npz", FIELDS, "a file", "the test")
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "b.npz", FIELDS, "a file", "the test")
