"""Draws a text table that a benchmark wrote, as SVG."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any


class TableError(ValueError):
    """The table has not what was to be drawn."""


@dataclass(frozen=True)
class Table:
    """The cells of a text table as they stand there."""

    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """Return a column by its heading, the first of that name."""
        if name not in self.header:
            raise TableError(f"no column {name!r} among {', '.join(self.header)}")
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def numbers(self, name: str) -> list[float]:
        """Return a column as numbers."""
        try:
            return [float(cell.rstrip("%*o")) for cell in self.column(name)]
        except ValueError as error:
            raise TableError(f"column {name!r} holds more than numbers: {error}") from None


def read_table(text: str, section: str) -> Table:
    """Return the first table at or below the line that contains ``section``.

    Cells are two spaces apart, the header stands above a line of dashes or above a row that has as
    many cells and a number among them, and the table ends with an empty line.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if section in line), None)
    if start is None:
        raise TableError(f"no line holds {section!r}")
    for i in range(start, len(lines) - 1):
        header, below = _cells(lines[i]), lines[i + 1]
        ruled = bool(below) and set(below) == {"-"}
        if len(header) < 2 or not (ruled or _has_number(below, len(header))):
            continue
        rows = []
        for line in lines[i + 1 + ruled :]:
            if not line.strip():
                break
            rows.append(_cells(line))
        uneven = next((row for row in rows if len(row) != len(header)), None)
        if uneven is not None:
            raise TableError(f"{len(uneven)} cells in {'  '.join(uneven)!r}, not {len(header)}")
        return Table(header, rows)
    raise TableError(f"no table below {section!r}")


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip()) if line.strip() else []


def _has_number(line: str, n_cells: int) -> bool:
    cells = _cells(line)
    return len(cells) == n_cells and any(re.fullmatch(r"[\d.]+", cell) for cell in cells)


def draw(
    table: Table,
    kind: str,
    *,
    columns: list[str],
    rows: str | None,
    only: list[str] | None,
    label: str,
) -> str:
    """Return the SVG of one of `KINDS`.

    ``rows`` is the column that names the rows, the first unless given; ``only`` keeps those rows
    whose first cell it holds.
    """
    import matplotlib
    from matplotlib.figure import Figure

    for name in only or ():
        if all(row[0] != name for row in table.rows):
            raise TableError(f"no row {name!r} among {'; '.join(row[0] for row in table.rows)}")
    if only:
        table = Table(table.header, [row for row in table.rows if row[0] in only])
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"{kind} {columns} {only}",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        KINDS[kind](axes, table, columns, rows or table.header[0], label)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :]


def _lines(axes: Any, table: Table, columns: list[str], rows: str, label: str) -> None:
    """One line for each row, along the columns."""
    for name, *values in zip(table.column(rows), *map(table.numbers, columns), strict=True):
        axes.plot(range(len(columns)), values, marker="o", markersize=4, label=name)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel(label)
    axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
    _legend(axes)


def _series(axes: Any, table: Table, columns: list[str], rows: str, label: str) -> None:
    """One line for each column, along the rows; one that sums up all others is left out."""
    places = [i for i, name in enumerate(table.column(rows)) if name != "all"]
    table = Table(table.header, [table.rows[i] for i in places])
    names = table.column(rows)
    for column in columns:
        axes.plot(range(len(names)), table.numbers(column), marker="o", markersize=4, label=column)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(rows)
    axes.set_ylabel(label)
    axes.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
    _legend(axes)


def _groups(axes: Any, table: Table, columns: list[str], rows: str, label: str) -> None:
    """A dot for each row, in a strip for each group of rows of one name."""
    names = table.column(rows)
    groups = list(dict.fromkeys(names))[::-1]
    (column,) = columns
    strips: dict[str, list[float]] = {name: [] for name in groups}
    for name, value in zip(names, table.numbers(column), strict=True):
        strips[name].append(value)
    for place, name in enumerate(groups):
        values = sorted(strips[name])
        # Neighbours are set apart, so that equal values can be counted.
        shift = [0.13 * (i % 3 - 1) for i in range(len(values))]
        axes.plot(values, [place + s for s in shift], "o", markersize=4, alpha=0.7)
    axes.set_yticks(range(len(groups)), groups)
    axes.set_xlabel(label)
    axes.axvline(1.0, color="0.6", linewidth=0.8, zorder=0)


def _dots(axes: Any, table: Table, columns: list[str], rows: str, label: str) -> None:
    """A dot for each row and column, the rows from top to bottom."""
    names = table.column(rows)
    places = range(len(names))[::-1]
    for column in columns:
        axes.plot(table.numbers(column), places, "o", markersize=5, label=column)
    axes.set_yticks(places, names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.figure.set_figheight(1.0 + 0.19 * len(names))
    axes.set_xlabel(label)
    axes.axvline(1.0, color="0.6", linewidth=0.8, zorder=0)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    _legend(axes)


def _growth(axes: Any, table: Table, columns: list[str], rows: str, label: str) -> None:
    """A column against another one, both on logarithmic scales."""
    sizes = table.numbers(rows)
    for column in columns:
        axes.loglog(sizes, table.numbers(column), marker="o", markersize=4, label=column)
    axes.set_xlabel(rows)
    axes.set_ylabel(label)
    axes.grid(which="both", color="0.92", linewidth=0.6)


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


#: Ways to draw a table, by the directive's option ``kind``.
KINDS = {"lines": _lines, "series": _series, "groups": _groups, "dots": _dots, "growth": _growth}
