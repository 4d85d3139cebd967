"""What a value from outside may be, declared once and checked in one way.

A declaration is a :class:`Kind`: ``Whole(least=1)``, ``ListOf(Real())``,
``Record({"name": Text()})``. :func:`checked` holds a value against it and names the place where it
differs::

    tree.json: layers[3].experts must be a whole number of at least 1, got 'x'

The same declarations serve files and arguments: NumPy's scalars count as numbers, tuples and arrays
as lists. ``True`` and ``False`` are no numbers, and no number is a text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import InvalidInputError

#: The largest whole number that a declaration takes unless it says otherwise.
MAX_WHOLE = 2**63 - 1
#: The largest float.
MAX_REAL = float(np.finfo(np.float64).max)


class Kind:
    """What a value may be."""

    #: In words, after "must be".
    wanted: str

    def take(self, value: Any) -> Any:
        """Return ``value`` as the plain Python value that it stands for.

        Raises
        ------
        Unfit
            If it is something else.
        """
        raise NotImplementedError

    def __call__(self, value: Any, name: str, error: type[Exception] = InvalidInputError) -> Any:
        """Return what :func:`checked` does."""
        return checked(value, self, name, error)


class Unfit(Exception):
    """A value is not what was declared. Goes no further than :func:`checked`.

    Parameters
    ----------
    reason : str
        What follows the place in a message.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def checked(
    value: Any, kind: Kind, name: str = "", error: type[Exception] = InvalidInputError
) -> Any:
    """Return ``value`` if it is what ``kind`` declares.

    Parameters
    ----------
    value : object
    kind : Kind
    name : str
        Of the value, for messages; "" for the content of a file.
    error : type of Exception
        What is raised.

    Returns
    -------
    object
        Plain Python values: int, float, str, bool, None, list, dict.

    Raises
    ------
    error
        Says where in ``value`` what was expected and what was found.
    """
    try:
        return kind.take(value)
    except Unfit as unfit:
        place = "".join([name, *reversed(unfit.path)]).removeprefix(".")
        raise error(f"{place or 'it'} {unfit.reason}") from None


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number.

    Attributes
    ----------
    least, most : int
    """

    least: int = 0
    most: int = MAX_WHOLE

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """The range in words."""
        if self.most >= MAX_WHOLE:
            return f"a whole number of at least {self.least}"
        return f"a whole number from {self.least} to {self.most}"

    def take(self, value: Any) -> int:
        """Return ``value`` as an int."""
        try:
            if isinstance(value, (bool, np.bool_)):
                raise TypeError
            number = operator.index(value)
        except TypeError:
            raise _unfit(self, value) from None
        if not self.least <= number <= self.most:
            raise _unfit(self, value)
        return number


@dataclass(frozen=True)
class Real(Kind):
    """A finite number.

    Attributes
    ----------
    least, most : float
    above : bool
        ``least`` itself is too little.
    infinite : bool
        Infinity is taken too; JSON, which has no word for it, says null or "inf".
    unit : str
        For messages: "seconds".
    """

    least: float = 0.0
    most: float = MAX_REAL
    above: bool = False
    infinite: bool = False
    unit: str = ""

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """The range in words."""
        of = f" of {self.unit}" if self.unit else ""
        low = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        if self.least == -MAX_REAL:
            low = ""
        high = "" if self.most == MAX_REAL else f" and at most {self.most:g}"
        return f"a finite number{of} {low}{high}".rstrip()

    def take(self, value: Any) -> float:
        """Return ``value`` as a float."""
        if self.infinite and (value is None or value == "inf" or value == math.inf):
            return math.inf
        if isinstance(value, (bool, np.bool_)) or not isinstance(
            value, (int, float, np.integer, np.floating)
        ):
            raise _unfit(self, value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        too_low = number <= self.least if self.above else number < self.least
        if too_low or not number <= self.most:
            raise _unfit(self, value)
        return number


@dataclass(frozen=True)
class Text(Kind):
    """A text that can be written as UTF-8.

    Attributes
    ----------
    empty : bool
        Whether it may be.
    """

    empty: bool = False

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """What it must be, in words."""
        return "a text" if self.empty else "a non-empty text"

    def take(self, value: Any) -> str:
        """Return ``value``."""
        if not isinstance(value, str) or not (value or self.empty):
            raise _unfit(self, value)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unfit(f"is no text that UTF-8 can hold: {shown(value)}") from None
        return value


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    wanted = "true or false"

    def take(self, value: Any) -> bool:
        """Return ``value`` as a bool."""
        if not isinstance(value, (bool, np.bool_)):
            raise _unfit(self, value)
        return bool(value)


@dataclass(frozen=True)
class Anything(Kind):
    """Whatever it is; somebody else checks it, or nobody reads it."""

    wanted = "anything"

    def take(self, value: Any) -> Any:
        """Return ``value``."""
        return value


@dataclass(frozen=True)
class OneOf(Kind):
    """One of some texts and numbers.

    Attributes
    ----------
    values : tuple
    """

    values: tuple[Any, ...]

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """The values."""
        return " or ".join(repr(value) for value in self.values)

    def take(self, value: Any) -> Any:
        """Return ``value``."""
        for known in self.values:
            if type(value) is type(known) and value == known:
                return known
        raise _unfit(self, value)


@dataclass(frozen=True)
class Maybe(Kind):
    """A value, or null (None).

    Attributes
    ----------
    kind : Kind
    """

    kind: Kind

    @property
    def wanted(self) -> str:  # type: ignore[override]
        """What the value must be, in words."""
        return f"{self.kind.wanted} or null"

    def take(self, value: Any) -> Any:
        """Return ``value``."""
        if value is None:
            return None
        return self.kind.take(value)


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
            raise _unfit(self, value)
        taken, take, i = [], self.kind.take, 0
        try:
            for i, entry in enumerate(value):  # noqa: B007  # the message names it
                taken.append(take(entry))
        except Unfit as unfit:
            unfit.path.append(f"[{i}]")
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
            raise _unfit(self, value)
        taken, take, key = {}, self.kind.take, ""
        for key in value:
            if not isinstance(key, str):
                raise Unfit(f"must have texts for keys, got {shown(key)}")
        try:
            for key, entry in value.items():
                taken[key] = take(entry)
        except Unfit as unfit:
            unfit.path.append(_key(key))
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
            raise _unfit(self, value)
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
        except Unfit as unfit:
            unfit.path.append(_key(key))
            raise
        return taken

    def _keys(self) -> str:
        keys = f"the keys are {', '.join(self.required)}"
        return keys + (f" and perhaps {', '.join(self.optional)}" if self.optional else "")


def settle(instance: Any, kinds: Mapping[str, Kind], prefix: str = "") -> None:
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


def shown(value: Any) -> str:
    """Return ``value`` as a message shows it: short, whatever it is."""
    if value is None:
        return "null"
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        entries = "entry" if len(value) == 1 else "entries"
        kind = "an object" if isinstance(value, Mapping) else f"a {_name(value)}"
        return f"{kind} of {len(value)} {entries}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 60 else f"{value[:60]!r}..."
    if isinstance(value, (int, float, np.generic)):
        return str(value)
    return f"a {_name(value)}"


def _name(value: Any) -> str:
    return type(value).__name__


def _unfit(kind: Kind, value: Any) -> Unfit:
    return Unfit(f"must be {kind.wanted}, got {shown(value)}")


def _key(key: str) -> str:
    return f".{key}" if key.isidentifier() else f"[{shown(key)}]"
