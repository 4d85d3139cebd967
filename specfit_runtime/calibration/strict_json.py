"""Reads JSON whose every key and figure is accounted for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from specfit_opt.errors import InvalidInputError


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Return the one object that ``text`` holds.

    Parameters
    ----------
    text : str
    where : str
        The file, for messages.

    Returns
    -------
    dict

    Raises
    ------
    InvalidInputError
        If it is no JSON, no object, repeats a key, or holds NaN or an infinity, which JSON has no
        word for although Python's reader takes them.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{where}: not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{where}: not valid JSON: nested too deeply") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInputError(f"{where}: holds {kind_of(data)}, not one JSON object")
    return data


def require_keys(data: dict[str, Any], known: Iterable[str], name: str) -> None:
    """Check that ``data`` has the keys ``known``, all of them and no other.

    Raises
    ------
    InvalidInputError
        Names the key.
    """
    keys = tuple(known)
    for key in data:
        if key not in keys:
            raise InvalidInputError(
                f"{name}unknown key {key!r}; the keys are {', '.join(sorted(keys))}"
            )
    missing = [key for key in keys if key not in data]
    if missing:
        raise InvalidInputError(f"{name}missing {', '.join(missing)}")


def checked_text(value: Any, name: str) -> str:
    """Return ``value`` if it is a text that is not empty.

    Raises
    ------
    InvalidInputError
        If it is not.
    """
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"{name} must be a non-empty text, got {value!r}")
    return value


def checked_whole(value: Any, name: str, least: int = 0) -> int:
    """Return ``value`` as an int of at least ``least``.

    Raises
    ------
    InvalidInputError
        If it is not a whole number or too small. ``True`` is no number here.
    """
    number = checked_real(value, name)
    if number != int(number) or number < least:
        raise InvalidInputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def checked_real(value: Any, name: str) -> float:
    """Return ``value`` as a finite float >= 0.

    Raises
    ------
    InvalidInputError
        If it is not a number, NaN, infinite or negative. ``True`` is no number here.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise InvalidInputError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        raise InvalidInputError(f"{name} must be a finite number, got {value!r}") from None
    if not 0.0 <= number < math.inf:
        raise InvalidInputError(f"{name} must be finite and >= 0, got {number}")
    return number


def checked_list(value: Any, name: str) -> list[Any]:
    """Return ``value`` as a list.

    Raises
    ------
    InvalidInputError
        If it is not a list, a tuple or a one-dimensional array.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        raise InvalidInputError(f"{name} must be a list, got {kind_of(value)}")
    return list(value)


def kind_of(value: Any) -> str:
    """Return what ``value`` is in JSON's words."""
    kinds = {list: "a list", dict: "an object", str: "a text", type(None): "null"}
    return kinds.get(type(value), "true or false" if isinstance(value, bool) else "a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidInputError(f"key {key!r} appears twice")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise InvalidInputError(f"{name} is no JSON number; every figure must be finite")
