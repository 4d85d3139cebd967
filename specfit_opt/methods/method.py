"""What a selection method is, and how a package of its own adds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
        ``time_limit`` seconds or None; :func:`specfit_opt.solve` tells what they mean and has
        checked them, so that a method documents its own options alone. A published rule has no use
        for a rate, which then only changes what is reported, nor for a time limit.
    summary : str
        One line for tables.
    source : str
        Paper, equation or section that the rule follows.
    proves : bool
        Whether the method can end in a proof of optimality.

    Examples
    --------
    A method of your own is registered under a new name, and known from then on to ``solve``,
    ``solve_many``, the replay and the command line of this process:

    >>> from specfit_opt import METHODS, Instance, Method, Solution, evaluate, solve_instance
    >>> def first(
    ...     instance: Instance,
    ...     *,
    ...     rate: float | None,
    ...     max_nodes: int | None,
    ...     time_limit: float | None,
    ...     count: int = 2,
    ... ) -> Solution:
    ...     parts = instance.tree, instance.routing, instance.cost_model
    ...     nodes = range(min(count, max_nodes or count, instance.tree.n_nodes))
    ...     return evaluate(*parts, nodes, rate=rate, method="first")
    >>> method = METHODS.register(Method("first", first, "the first nodes", "an example"))
    >>> method.options
    {'count': 2}
    >>> METHODS.remove("first") is method
    True
    """

    name: str
    select: Callable[..., Solution]
    summary: str
    source: str
    proves: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The method's own options by name, with their defaults."""
        parameters = inspect.signature(self.select).parameters
        return {name: p.default for name, p in parameters.items() if name not in COMMON}


#: What every method is given, whatever its options.
COMMON = ("instance", "rate", "max_nodes", "time_limit")
