"""What a selection method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..solution import Solution


@dataclass(frozen=True)
class Method:
    """A selection method as the registry holds it.

    Attributes
    ----------
    name : str
        What ``solve(..., method=name)`` takes.
    select : callable
        ``select(instance, *, rate, max_nodes, time_limit, **method_options) -> Solution``.
        ``rate`` is a float or None, ``max_nodes`` an int (at least the number of roots) or None,
        ``time_limit`` seconds or None; :func:`specfit_opt.solve` has checked them.
    summary : str
        One line for tables.
    source : str
        Paper, equation or section that the rule follows.
    proves : bool
        Whether the method can end in a proof of optimality.
    """

    name: str
    select: Callable[..., Solution]
    summary: str
    source: str
    proves: bool = False
