"""Figures and plain text tables, as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence


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


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()
) -> str:
    """Return a table: columns as wide as needed, two spaces apart, a rule below the header.

    Parameters
    ----------
    header : sequence of str
        Column titles.
    rows : sequence of sequence of str
        Cells, one per column. A row with fewer cells than columns ends early: its last cell may
        run on over the columns that it lacks.
    left : sequence of str
        Titles of the columns to align to the left; the first column always is, others are aligned
        to the right.

    Returns
    -------
    str
        Lines without trailing spaces, joined by newlines.
    """
    width = [len(title) for title in header]
    for row in rows:
        for i, cell in enumerate(row):
            if len(row) == len(header) or i < len(row) - 1:
                width[i] = max(width[i], len(cell))
    to_left = [i == 0 or title in left for i, title in enumerate(header)]

    def line(cells: Sequence[str]) -> str:
        full = len(cells) == len(header)
        parts = [
            cell.ljust(width[i])
            if to_left[i] or (i == len(cells) - 1 and not full)
            else cell.rjust(width[i])
            for i, cell in enumerate(cells)
        ]
        return "  ".join(parts).rstrip()

    rule = "-" * (sum(width) + 2 * (len(width) - 1))
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
