"""Read JSON from somebody else: everything is bounded, and nothing is guessed.

Refused are, each with the file and the place: a file that is no regular file or larger than its
bound (16 MiB unless the format says otherwise), bytes that are not UTF-8, more than 2**20 values,
nesting deeper than 64, numbers of more than 128 digits in a row or beyond the range of a double,
NaN and the infinities, which JSON has no word for, keys that come twice, and texts with half of a
surrogate pair, which cannot be written again. A byte order mark is skipped.

What the values may be is declared with ``specfit_opt.schema``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from ..checks import Kind, checked, shown
from ..errors import InvalidInputError
from ..schema import Record
from .regular_file import printable, read_regular

#: Bytes of a file, unless the format says otherwise.
MAX_BYTES = 16 * 2**20
#: Values in one document: what bounds the memory, up to 200 bytes each.
MAX_VALUES = 2**20
#: Lists and objects around a value.
MAX_DEPTH = 64
#: Digits of a number in a row. Any double can be written in far fewer.
MAX_DIGITS = 128

_STRUCTURE = b'"[]{}'
_NO_STRUCTURE = bytes(set(range(256)) - set(_STRUCTURE))
# What may be a number too long or too large; in a text it is harmless.
_LONG = re.compile(rf"(?<![0-9])[0-9]{{{MAX_DIGITS + 1}}}")
_LARGE = re.compile(r"[eE]\+?[0-9]{3}")
# An escaped character; the group is half of a surrogate pair.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F]..)|.)"
)
_ANY_OBJECT = Record({}, others=True)


def read_json(
    path: str | os.PathLike[str],
    kind: Kind = _ANY_OBJECT,
    *,
    limit: int = MAX_BYTES,
    values: int = MAX_VALUES,
    error: type[Exception] | None = None,
) -> Any:
    """Return what a JSON file holds.

    Parameters
    ----------
    path : str or path-like
        A regular file.
    kind : Kind
        What the file holds; default any object.
    limit : int
        Bytes that the file may have.
    values : int
        Values that it may hold.
    error : type of Exception, optional
        The class of every failure. Default: InvalidInputError for what the file holds, and
        OSError, as the system raises it, where it cannot be opened.

    Returns
    -------
    object
        As ``kind`` gives it; with the default a dict.

    Raises
    ------
    InvalidInputError, OSError, or ``error``
        Names the file and the place.
    """
    content = read_regular(path, limit, error)
    return parse_json(
        content, printable(path), kind, values=values, error=error or InvalidInputError
    )


def parse_json(
    content: bytes | str,
    where: str,
    kind: Kind = _ANY_OBJECT,
    *,
    values: int = MAX_VALUES,
    error: type[Exception] = InvalidInputError,
) -> Any:
    """Return what JSON ``content`` holds.

    Parameters
    ----------
    content : bytes or str
        Of a size that the caller has bounded.
    where : str
        The file, for messages.
    kind : Kind
        What it holds; default any object.
    values : int
        Values that it may hold.
    error : type of Exception
        The class of every failure.

    Returns
    -------
    object
        As ``kind`` gives it; with the default a dict.

    Raises
    ------
    error
        Names ``where`` and the place.
    """
    with _failing_as(error, where):
        raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        check_extent(raw, values)
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as problem:
            raise InvalidInputError(
                f"not UTF-8 text: {problem.reason} at byte {problem.start}"
            ) from None
        _check_surrogates(text)
        value = _parsed(text)
        del text, raw
        return checked(value, kind)


def check_extent(raw: bytes, most: int = MAX_VALUES) -> None:
    """Check the number of values and the depth of a JSON text, before it is parsed or written.

    Raises
    ------
    InvalidInputError
        If there are more than ``most`` or it is deeper than `MAX_DEPTH`.

    Notes
    -----
    Commas and brackets inside texts count as values too, which only makes the bound stricter.
    """
    brackets = raw.count(b"[") + raw.count(b"{")
    values = brackets + raw.count(b",")
    if values > most:
        raise InvalidInputError(f"more than {most} values; that is too many for JSON")
    if brackets <= MAX_DEPTH:
        return
    # Escaped quotes go first; then a bracket counts where the quotes before it pair up.
    left = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_STRUCTURE)
    codes = np.frombuffer(left, dtype=np.uint8)
    quote, open_list, close_list, open_object, close_object = _STRUCTURE
    step = ((codes == open_list) | (codes == open_object)).astype(np.int8)
    step -= (codes == close_list) | (codes == close_object)
    step[np.cumsum(codes == quote, dtype=np.uint8) % 2 == 1] = 0
    deepest = int(np.cumsum(step, dtype=np.int32).max(initial=0))
    if deepest > MAX_DEPTH:
        raise InvalidInputError(
            f"lists and objects are nested {deepest} deep; at most {MAX_DEPTH} are read"
        )


def _parsed(text: str) -> Any:
    def whole(token: str) -> int:
        if len(token) > MAX_DIGITS:
            raise InvalidInputError(_at(text, token, f"a number of {len(token)} characters"))
        return int(token)

    def real(token: str) -> float:
        number = float(token)
        if math.isinf(number):
            raise InvalidInputError(_at(text, token, f"the number {shown(token)} is out of range"))
        return number

    # The hooks are slow, so they are put in only where something calls for them.
    large = bool(_LARGE.search(text) or _LONG.search(text))
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=whole if large else None,
            parse_float=real if large else None,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as problem:
        raise InvalidInputError(
            f"no JSON, or cut short: {problem.msg} in line {problem.lineno}, column {problem.colno}"
        ) from None
    except RecursionError:  # the caller has used up the stack
        raise InvalidInputError("nested too deeply to be read here") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidInputError(f"the key {shown(twice)} occurs twice in one object; keep one")
    return data


def _refuse_constant(token: str) -> NoReturn:
    raise InvalidInputError(f"{token} is no JSON number; every figure must be finite")


def _check_surrogates(text: str) -> None:
    if re.search(r"\\u[dD][89a-fA-F]", text) is None:
        return
    for escape in _ESCAPE.finditer(text):
        if escape[1]:
            raise InvalidInputError(
                _at(text, escape[0], "half of a surrogate pair", escape.start())
            )


def _at(text: str, token: str, what: str, start: int | None = None) -> str:
    """Return ``what`` with the line and column of ``token``."""
    place = text.find(token) if start is None else start
    line = text.count("\n", 0, place) + 1
    return f"{what} in line {line}, column {place - text.rfind(chr(10), 0, place)}"


@contextmanager
def _failing_as(error: type[Exception], where: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError as problem:
        raise error(f"{where}: {problem}") from None
