"""Export the fixed-rate problem for other people's solvers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..errors import InvalidInputError
from ..instance import Instance
from .atomic import atomic_write
from .closure_model import ClosureModel, closure_model
from .lp import write_lp
from .mps import write_mps

#: Writers by file extension.
WRITERS: dict[str, Callable[[IO[str], ClosureModel], None]] = {
    ".lp": write_lp,
    ".mps": write_mps,
}


def export(
    path: str | os.PathLike[str], instance: Instance, rate: float, *, max_nodes: int | None = None
) -> None:
    """Write the problem at a fixed rate as a mixed-integer program, whole or not at all.

    The program maximises the surplus P(S) - rate * T(S) over the ancestor-closed sets S that hold
    every root, which is what ``solve(..., rate=rate)`` does. So any solver can check a solution;
    at ``rate = solve(...).throughput`` the optimum is 0.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.lp`` (CPLEX LP format) or ``.mps`` (free MPS). Replaced if it exists.
    instance : Instance
    rate : float
        Tokens per second, >= 0.
    max_nodes : int, optional
        Largest size allowed, roots included.

    Raises
    ------
    InvalidInputError
        For another extension, something that is no Instance, or a ``rate`` or ``max_nodes`` out of
        range.
    OSError
        If the file cannot be written; an older file is then as it was.

    Notes
    -----
    The names of columns and rows are explained in the comment at the top of the file:
    ``x_<node>``, ``y_<layer>_<expert>``, ``s_<size>`` where node_time is a table, and
    ``constant``, which is fixed to 1 and carries -rate * fixed_time.
    """
    extension = Path(path).suffix.lower()
    if extension not in WRITERS:
        raise InvalidInputError(
            f"{os.fspath(path)}: the extension {extension!r} is no model format; use .lp or .mps"
        )
    if not isinstance(instance, Instance):
        raise InvalidInputError(
            f"expected an Instance, got {type(instance).__name__}; the order is path, instance, "
            "rate"
        )
    model = closure_model(instance, rate, max_nodes)
    with atomic_write(path, "w") as handle:
        WRITERS[extension](handle, model)
