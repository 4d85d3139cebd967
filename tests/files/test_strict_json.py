"""JSON from somebody else: bounded, unambiguous, and every failure has a file and a place."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from specfit_opt.checks import Anything, Whole
from specfit_opt.errors import InvalidInputError
from specfit_opt.files import strict_json
from specfit_opt.files.strict_json import (
    MAX_DEPTH,
    MAX_DIGITS,
    parse_json,
    read_json,
)
from specfit_opt.schema import ListOf, Record


class MyError(InvalidInputError):
    pass


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"a": [1, -2.5e-3, 1e300, "\\ud83d\\ude00 \\\\ud800 [[[[", null, true]}',
        '{"long": "' + "7" * 500 + ' 1e999", "' + "[" * 500 + '": 0}',
        '{"deep": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}",
        '{"digits": ' + "9" * MAX_DIGITS + "}",
        '{"a": "\\\\", "b": "\\"[", "c": ' + "[{}," * 50 + "0" + "]" * 50 + "}",
    ],
)
def test_reads_what_json_reads(text: str) -> None:
    assert parse_json(text, "f") == json.loads(text)
    assert parse_json(b"\xef\xbb\xbf" + text.encode(), "f") == json.loads(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no JSON, or cut short: Expecting value in line 1, column 1"),
        (b'{"a":\n 1,,}', "no JSON, or cut short: Expecting property name enclosed in double quo"),
        (b"{} {}", "no JSON, or cut short: Extra data in line 1, column 4"),
        (b"[1]", "it must be an object, got a list of 1 entry"),
        (b'{"a": "\xff"}', "not UTF-8 text: invalid start byte at byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8 text: invalid continuation byte at byte 7"),
        (b'{"a": 1, "a": 1}', "the key 'a' occurs twice in one object; keep one"),
        (b'{"a": NaN}', "NaN is no JSON number; every figure must be finite"),
        (b'{"a": -Infinity}', "-Infinity is no JSON number; every figure must be finite"),
        (b'{"a": 1,\n"b": 1e400}', "the number '1e400' is out of range in line 2, column 6"),
        (b'{"a": -1E+999}', "the number '-1E+999' is out of range in line 1, column 7"),
        (b'{"a": 1' + b"0" * 400 + b"}", "a number of 401 characters in line 1, column 7"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "a number of 5001 characters in line 1, column 7"),
        (b'{"a": 1.' + b"0" * 400 + b"e9999}", "the number '1.000"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "lists and objects are nested 65 deep; at most"),
        (b'{"a":' * 99999, "lists and objects are nested 99999 deep; at most 64 are read"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair in line 1, column 8"),
        (b'{"a": "\\udc00\\ud800"}', "half of a surrogate pair in line 1, column 8"),
    ],
    ids=range(18),
)
def test_refuses(content: bytes, message: str) -> None:
    with pytest.raises(MyError) as caught:
        parse_json(content, "f.json", error=MyError)
    assert str(caught.value).startswith(f"f.json: {message}")
    assert len(str(caught.value)) < 200


def test_the_schema_names_file_and_place() -> None:
    kind = Record({"layers": ListOf(Record({"experts": Whole(1)}, others=True))})
    assert parse_json('{"layers": [{"experts": 2, "x": []}]}', "f", kind)["layers"][0]["x"] == []
    with pytest.raises(InvalidInputError, match=r"^f: layers\[1\]\.experts must be a whole number"):
        parse_json('{"layers": [{"experts": 2}, {"experts": -1}]}', "f", kind)


def test_more_values_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "MAX_VALUES", 5)
    parse_json("[[],[],0]", "f", Anything(), values=5)
    with pytest.raises(InvalidInputError, match="more than 5 values"):
        parse_json("[[],[],[],0]", "f", Anything(), values=5)


@pytest.mark.parametrize("entry", ["[]", '{"a":0}', "1.5e9", '"ab"'])
def test_the_bounds_keep_the_memory_small(entry: str) -> None:
    size = strict_json.MAX_VALUES // 16
    count = size // (1 + entry.count("[") + entry.count("{")) - 2
    text = '{"a":[' + ",".join([entry] * count) + "]}"
    tracemalloc.start()
    try:
        parse_json(text, "f")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak * 16 < 500e6


def test_a_file_of_the_size_allowed_and_one_more(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json(path, limit=8) == {"a": 1}
    with pytest.raises(
        InvalidInputError, match=r"a\.json: has 8 bytes or more; at most 7 are read"
    ):
        read_json(path, limit=7)


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe", "endless"):
        with pytest.raises(
            InvalidInputError, match=f"{name}.json: is a pipe, a device or a socket"
        ):
            read_json(tmp_path / f"{name}.json")
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path / "folder.json")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
    for name in ("folder", "none"):
        with pytest.raises(MyError, match=f"{name}.json: cannot be read: "):
            read_json(tmp_path / f"{name}.json", error=MyError)
    for nonsense in ("a\0b", "\ud800", 1.5, 1, True):
        with pytest.raises(InvalidInputError, match="is no name of a file"):
            read_json(nonsense)  # type: ignore[arg-type]


def test_a_file_whose_size_the_system_does_not_tell() -> None:
    assert os.stat("/proc/self/maps").st_size == 0
    with pytest.raises(InvalidInputError, match="at most 99 are read"):
        read_json("/proc/self/maps", limit=99)
