"""Rates of results, and results as plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, overload


def ratio(amount: float, per: float) -> float:
    """Return ``amount / per``, NaN where there is nothing to divide by."""
    return amount / per if per else math.nan


class Rate:
    """A ratio of two totals of a result, as an attribute of its class; NaN without a base.

    Parameters
    ----------
    amount, per : str
        The totals, attributes of the result.
    meaning : str
        One line for the documentation.
    """

    def __init__(self, amount: str, per: str, meaning: str) -> None:
        self._amount, self._per = amount, per
        self.__doc__ = meaning

    @overload
    def __get__(self, result: None, kind: type) -> Rate: ...

    @overload
    def __get__(self, result: object, kind: type) -> float: ...

    def __get__(self, result: object | None, kind: type) -> Rate | float:
        if result is None:
            return self
        return ratio(getattr(result, self._amount), getattr(result, self._per))


def finite(value: float | None) -> float | None:
    """Return ``value``, or None where JSON has no number for it."""
    return value if value is not None and math.isfinite(value) else None


def plain_dict(record: Any, rates: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields and some properties of a dataclass, ready for JSON.

    Parameters
    ----------
    record : dataclass
        Of plain values.
    rates : iterable of str
        Names of properties that are numbers.

    Returns
    -------
    dict
        In the order of the fields, then the rates; a rate without a base is None.
    """
    fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {**fields, **{name: finite(getattr(record, name)) for name in rates}}
