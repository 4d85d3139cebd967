"""Plain text tables."""

from __future__ import annotations

from collections.abc import Sequence


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
