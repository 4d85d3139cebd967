"""Figures as people read them."""

from __future__ import annotations

import math


def seconds(value: float) -> str:
    """Return a time with three significant digits: ``1.23 s``, ``4.56 ms``, ``78.9 us``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{_digits(value / size, 3)} {unit}"
    return f"{_digits(value / 1e-6, 3)} us"


def byte_size(value: float) -> str:
    """Return an amount of bytes with three significant digits, in powers of 1000: ``9.44 MB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{_digits(value / size, 3)} {unit}"
    return f"{_digits(value, 3)} B"


def figure(value: float) -> str:
    """Return a figure with four significant digits and no exponent: ``34.80``."""
    return _digits(value, 4)


def _digits(value: float, significant: int) -> str:
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"
