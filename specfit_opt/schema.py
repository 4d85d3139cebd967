"""What JSON from outside may hold, declared and checked: lists and objects of checked values.

A declaration is a kind as in :mod:`specfit_opt.checks`: ``ListOf(Real())``,
``Record({"name": Text()})``. What differs is named with its place::

    tree.json: layers[3].experts must be a whole number of at least 1, got 'x'

The same declarations serve files and arguments: tuples and arrays count as lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .checks import MAX_WHOLE, Kind, Unfit, checked, shown, unfit


@dataclass(frozen=True)
class ListOf(Kind):
    """A list, all of one kind.

    Attributes
    ----------
    kind : Kind
        Of the entries.
    least, most : int
        Number of entries.
    """

    kind: Kind
    least: int = 0
    most: int = MAX_WHOLE

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """The number of entries in words."""
        if self.least == self.most:
            return f"a list of {self.least}"
        low = f" of at least {self.least}" if self.least else ""
        return f"a list{low}" + (f" of at most {self.most}" if self.most < MAX_WHOLE else "")

    def take(self, value: Any) -> list[Any]:
        """Return the entries as a list."""
        if isinstance(value, np.ndarray) and value.ndim:
            value = value.tolist()
        if not isinstance(value, (list, tuple)) or not self.least <= len(value) <= self.most:
            raise unfit(self, value)
        taken, take, i = [], self.kind.take, 0
        try:
            for i, entry in enumerate(value):  # noqa: B007  # the message names it
                taken.append(take(entry))
        except Unfit as problem:
            problem.path.append(f"[{i}]")
            raise
        return taken


@dataclass(frozen=True)
class Either(Kind):
    """One value, or a list of several.

    Attributes
    ----------
    one : Kind
    several : ListOf
    """

    one: Kind
    several: Kind

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """Both in words."""
        return f"{self.one.wanted} or {self.several.wanted}"

    def take(self, value: Any) -> Any:
        """Return ``value``, checked as the one or the other."""
        is_list = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
        return (self.several if is_list else self.one).take(value)


@dataclass(frozen=True)
class MapOf(Kind):
    """An object with any keys, whose values are all of one kind.

    Attributes
    ----------
    kind : Kind
        Of the values.
    """

    kind: Kind

    wanted = "an object"

    def take(self, value: Any) -> dict[str, Any]:
        """Return the object as a dict."""
        if not isinstance(value, Mapping):
            raise unfit(self, value)
        taken, take, key = {}, self.kind.take, ""
        for key in value:
            if not isinstance(key, str):
                raise Unfit(f"must have texts for keys, got {shown(key)}")
        try:
            for key, entry in value.items():
                taken[key] = take(entry)
        except Unfit as problem:
            problem.path.append(_key(key))
            raise
        return taken


@dataclass(frozen=True)
class Record(Kind):
    """An object whose keys are known.

    Attributes
    ----------
    required, optional : mapping of str to Kind
    others : bool
        Keys that are in neither are handed on as they are; else they are an error, so that a
        misspelt one is not lost.
    """

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)
    others: bool = False

    wanted = "an object"

    def take(self, value: Any) -> dict[str, Any]:
        """Return the object as a dict."""
        if not isinstance(value, Mapping):
            raise unfit(self, value)
        missing = [key for key in self.required if key not in value]
        if missing:
            raise Unfit(f"lacks {', '.join(map(repr, missing))}; {self._keys()}")
        kinds = {**self.optional, **self.required}
        extra = next((key for key in value if key not in kinds), None) if not self.others else None
        if extra is not None:
            raise Unfit(f"has the unknown key {shown(extra)}; {self._keys()}")
        taken, key = dict(value), ""
        try:
            for key, kind in kinds.items():
                if key in taken:
                    taken[key] = kind.take(taken[key])
        except Unfit as problem:
            problem.path.append(_key(key))
            raise
        return taken

    def _keys(self) -> str:
        keys = f"the keys are {', '.join(self.required)}"
        return keys + (f" and perhaps {', '.join(self.optional)}" if self.optional else "")


def check_attributes(instance: Any, kinds: Mapping[str, Kind], prefix: str = "") -> None:
    """Check attributes of a frozen dataclass and set them to what the declarations give.

    Lists become tuples, so that the instance stays as it is.

    Parameters
    ----------
    instance : dataclass instance
    kinds : mapping of str to Kind
        By attribute.
    prefix : str
        Comes before the attribute's name in messages.

    Raises
    ------
    InvalidInputError
        Names the attribute.
    """
    for name, kind in kinds.items():
        value = checked(getattr(instance, name), kind, prefix + name)
        object.__setattr__(instance, name, tuple(value) if isinstance(value, list) else value)


def _key(key: str) -> str:
    return f".{key}" if key.isidentifier() else f"[{shown(key)}]"
