"""Checks of method options."""

from __future__ import annotations

from typing import Any

from .._validate import is_whole
from ..errors import InvalidInputError
from ..schema import shown


def integer_option(value: Any, name: str, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int in [least, most].

    Raises
    ------
    InvalidInputError
        If it is no integer or lies outside.
    """
    if not is_whole(value) or value < least or (most is not None and value > most):
        above = "" if most is None else f" and at most {most}"
        raise InvalidInputError(
            f"option {name} must be an integer of at least {least}{above}, got {shown(value)}"
        )
    return int(value)


def choice_option(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises
    ------
    InvalidInputError
        If it is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(
            f"option {name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}"
        )
    return str(value)
