"""Checks of arrays from outside: what is taken comes out read-only and contiguous."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInputError


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array`` marked read-only, copied first if someone else could write to it."""
    if array.flags.writeable:
        if not array.flags.owndata:
            array = array.copy()
        array.flags.writeable = False
    return array


def refreeze(self: object, state: dict[str, Any]) -> None:
    """Restore an unpickled or copied object; serves the data classes as ``__setstate__``.

    Pickling forgets that an array is read-only, and the classes promise that theirs are.
    """
    for value in state.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    self.__dict__.update(state)


def integer_array(value: Any, name: str, ndim: int, dtype: Any = np.int32) -> NDArray[Any]:
    """Convert to a contiguous read-only integer array of ``ndim`` dimensions.

    Raises
    ------
    InvalidInputError
        If the values are not integers, do not fit ``dtype``, or the shape has another rank.
    """
    array = as_array(value, name)
    if array.dtype.kind not in "iu":
        raise InvalidInputError(f"{name} must hold integers, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise InvalidInputError(
            f"{name} must have {ndim} dimension(s), got shape {tuple(array.shape)}"
        )
    info = np.iinfo(dtype)
    if array.dtype.itemsize > np.dtype(dtype).itemsize or array.dtype.kind == "u":
        outside = (array < info.min) | (array > info.max)
        if outside.any():
            where = tuple(int(i) for i in np.argwhere(outside)[0])
            raise InvalidInputError(
                f"{name}[{_index(where)}] = {array[where]} does not fit {np.dtype(dtype)}"
            )
    return frozen(_private(array, value, dtype))


def float_array(value: Any, name: str) -> NDArray[np.float64]:
    """Convert to a contiguous read-only float64 array, refusing complex, text and objects.

    What is finite stays finite: a long double too large for float64 is refused.
    """
    array = as_array(value, name)
    if array.dtype.kind not in "iuf":
        raise InvalidInputError(f"{name} must hold real numbers, got dtype {array.dtype}")
    with np.errstate(over="ignore"):
        converted: NDArray[np.float64] = frozen(_private(array, value, np.float64))
    if array.dtype.itemsize > 8 and (np.isinf(converted) & np.isfinite(array)).any():
        raise InvalidInputError(f"{name} holds numbers that are too large for double precision")
    return converted


def is_scalar(value: Any, name: str) -> bool:
    """Return whether ``value`` has no dimensions.

    Raises
    ------
    InvalidInputError
        If it is no number and no rectangular nest of sequences.
    """
    return type(value) is float or as_array(value, name).ndim == 0


def first(flags: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True of a vector, or None."""
    where = flags.nonzero()[0]
    return int(where[0]) if len(where) else None


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return ``value`` as an array of whatever numbers it holds.

    Raises
    ------
    InvalidInputError
        If it is no rectangular nest of sequences, holds an integer of more than double precision's
        range among floats, or masks entries.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInputError(f"{name} is a masked array; give plain numbers")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"{name} is not a rectangular array: {error}") from None


def _private(array: NDArray[Any], value: Any, dtype: Any) -> NDArray[Any]:
    # A writeable array of the caller's must not stay shared: the classes promise immutability.
    # A read-only one may, which spares a copy when one array serves many objects.
    shared = array.dtype == dtype and array.flags.c_contiguous
    if shared and isinstance(value, np.ndarray) and array.flags.writeable:
        return np.array(array, dtype=dtype, order="C")
    return np.ascontiguousarray(array, dtype=dtype)


def _index(where: tuple[int, ...]) -> str:
    return ", ".join(str(i) for i in where)
