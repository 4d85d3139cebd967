"""What one value from outside may be, declared once and checked in one way.

A declaration is a :class:`Kind`: ``Whole(1)``, ``Real(unit="seconds")``, ``Maybe(Text())``. Called
with a value and its name, it gives the plain Python value or says what is wrong::

    n_layers must be a whole number of at least 1, got 'x'

NumPy's scalars count as numbers. ``True`` and ``False`` are no numbers, and no number is a text.
Lists and objects are put together from such kinds in :mod:`specfit_opt.schema`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InvalidInputError

#: The largest whole number that a declaration takes unless it says otherwise.
MAX_WHOLE = 2**63 - 1
#: The largest float.
MAX_REAL = float(np.finfo(np.float64).max)


class Kind:
    """What a value may be; a call checks one."""

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
    except Unfit as problem:
        place = "".join([name, *reversed(problem.path)]).removeprefix(".")
        raise error(f"{place or 'it'} {problem.reason}") from None


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number.

    Attributes
    ----------
    least : int
    most : int, or inf
    """

    least: int = 0
    most: float = MAX_WHOLE

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
            raise unfit(self, value) from None
        if not self.least <= number <= self.most:
            raise unfit(self, value)
        return number


@dataclass(frozen=True)
class Real(Kind):
    """A finite number.

    Attributes
    ----------
    least, most : float
        Infinity is taken where ``most`` is inf.
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
        high = "" if self.most >= MAX_REAL else f" and at most {self.most:g}"
        finite = "" if self.most == math.inf else "finite "
        return f"a {finite}number{of} {low}{high}".rstrip()

    def take(self, value: Any) -> float:
        """Return ``value`` as a float."""
        if type(value) is not float:  # the usual case first, for this is a hot path
            if self.infinite and (value is None or value == "inf"):
                return math.inf
            value = self._as_float(value)
        if self.infinite and value == math.inf:
            return math.inf
        number: float = value
        too_low = number <= self.least if self.above else number < self.least
        if too_low or not number <= self.most:
            raise unfit(self, value)
        return number + 0.0  # -0.0 becomes 0.0

    def _as_float(self, value: Any) -> float:
        # What can be turned into a float but is no real number: text, True, an array, a complex.
        kind = getattr(getattr(value, "dtype", None), "kind", "f")
        try:
            if isinstance(value, (str, bytes, bool)) or kind not in "iuf" or np.ndim(value) > 0:
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise unfit(self, value) from None


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
            raise unfit(self, value)
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
            raise unfit(self, value)
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
        raise unfit(self, value)


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


def unfit(kind: Kind, value: Any) -> Unfit:
    """Return what to raise where ``value`` is not of ``kind``."""
    return Unfit(f"must be {kind.wanted}, got {shown(value)}")
