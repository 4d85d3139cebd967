"""Write a closure model in free MPS format."""

from __future__ import annotations

from typing import IO

import numpy as np

from .closure_model import ClosureModel


def write_mps(handle: IO[str], model: ClosureModel) -> None:
    """Write ``model`` to a text file.

    Free MPS, with the OBJSENSE section that states the direction (MPS alone means minimise).
    Numbers carry 17 significant digits at most, as many as it takes to read the same double back.
    """
    for line in model.comment:
        handle.write(f"* {line}".rstrip() + "\n")
    handle.write("NAME specfit\nOBJSENSE\n    MAX\nROWS\n N surplus\n")
    rows = list(model.arc_names)
    for name in rows:
        handle.write(f" L {name}\n")
    for name, _, _, sense, _ in model.links:
        handle.write(f" {sense} {name}\n")
        rows.append(name)

    # Entries by column, which is how MPS lists them.
    n_arcs = len(model.arcs)
    arc = np.arange(n_arcs)
    row = [arc, arc]
    column = [model.arcs[:, 0], model.arcs[:, 1]]
    value = [np.ones(n_arcs), -np.ones(n_arcs)]
    for i, (_, at, coefficients, _, _) in enumerate(model.links):
        row.append(np.full(len(at), n_arcs + i))
        column.append(at)
        value.append(coefficients)
    rows_at, values_at = np.concatenate(row), np.concatenate(value)
    columns_at = np.concatenate(column)
    order = np.lexsort((rows_at, columns_at))
    ends = np.searchsorted(columns_at[order], np.arange(len(model.columns)), side="right").tolist()

    handle.write("COLUMNS\n")
    begin, integer = 0, False
    for j, name in enumerate(model.columns):
        if bool(model.binary[j]) != integer:
            integer = not integer
            kind = "INTORG" if integer else "INTEND"
            handle.write(f"    M{j} 'MARKER' '{kind}'\n")
        handle.write(f"    {name} surplus {float(model.objective[j])!r}\n")
        for entry in order[begin : ends[j]].tolist():
            handle.write(f"    {name} {rows[rows_at[entry]]} {float(values_at[entry])!r}\n")
        begin = ends[j]
    if integer:
        handle.write("    MEND 'MARKER' 'INTEND'\n")

    handle.write("RHS\n")
    for name, _, _, _, right in model.links:
        if right != 0.0:
            handle.write(f"    RHS {name} {right!r}\n")
    handle.write("BOUNDS\n")
    for name, fixed, binary in zip(
        model.columns, model.fixed.tolist(), model.binary.tolist(), strict=True
    ):
        if fixed:
            handle.write(f" FX BOUND {name} 1\n")
        elif binary:
            handle.write(f" BV BOUND {name}\n")
        else:
            handle.write(f" UP BOUND {name} 1\n")
    handle.write("ENDATA\n")
