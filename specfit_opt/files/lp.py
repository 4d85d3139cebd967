"""Write a closure model in the CPLEX LP format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from .closure_model import ClosureModel

# Readers are promised no more than 255 characters a line by some solvers' manuals.
_WIDTH = 200


def write_lp(handle: IO[str], model: ClosureModel) -> None:
    """Write ``model`` to a text file.

    Numbers carry 17 significant digits at most, as many as it takes to read the same double back.
    The constant is a column fixed to 1, because not every reader takes a bare number.
    """
    columns = model.columns
    for line in model.comment:
        handle.write(f"\\ {line}".rstrip() + "\n")
    handle.write("Maximize\n")
    _write_terms(handle, " surplus:", zip(model.objective.tolist(), columns, strict=True), "")
    handle.write("Subject To\n")
    for name, (a, b) in zip(model.arc_names, model.arcs.tolist(), strict=True):
        handle.write(f" {name}: {columns[a]} - {columns[b]} <= 0\n")
    for name, at, coefficients, sense, right in model.links:
        terms = zip(coefficients.tolist(), (columns[i] for i in at.tolist()), strict=True)
        _write_terms(handle, f" {name}:", terms, f" {'=' if sense == 'E' else '<='} {right!r}")
    handle.write("Bounds\n")
    for name, fixed, binary in zip(
        columns, model.fixed.tolist(), model.binary.tolist(), strict=True
    ):
        if fixed:
            handle.write(f" {name} = 1\n")
        elif not binary:
            handle.write(f" 0 <= {name} <= 1\n")
    if model.binary.any():
        handle.write("Binaries\n")
        for name, binary in zip(columns, model.binary.tolist(), strict=True):
            if binary:
                handle.write(f" {name}\n")
    handle.write("End\n")


def _write_terms(handle: IO[str], head: str, terms: Iterable[tuple[float, str]], tail: str) -> None:
    line = head
    for coefficient, name in terms:
        term = f" {'-' if coefficient < 0.0 else '+'} {abs(coefficient)!r} {name}"
        if len(line) + len(term) > _WIDTH:
            handle.write(line + "\n")
            line = "  "
        line += term
    handle.write(f"{line}{tail}\n")
