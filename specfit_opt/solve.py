"""Choose the subtree to verify."""

from __future__ import annotations

from typing import Any

from .cost import CostModel
from .errors import InvalidInputError
from .instance import Instance, checked_max_nodes
from .limits import RATE, TIME_LIMIT
from .methods import METHODS
from .routing import ExpertRouting
from .solution import Solution
from .tree import DraftTree


def solve(
    tree: DraftTree,
    routing: ExpertRouting,
    cost_model: CostModel,
    *,
    method: str = "exact",
    rate: float | None = None,
    max_nodes: int | None = None,
    time_limit: float | None = None,
    **method_options: Any,
) -> Solution:
    """Choose the ancestor-closed subtree with the best predicted throughput.

    Parameters
    ----------
    tree : DraftTree
        n nodes; every root is always chosen.
    routing : ExpertRouting
        Experts of every node, packed.
    cost_model : CostModel
        Times in seconds.
    method : str
        A name in :data:`specfit_opt.METHODS`.
    rate : float, optional
        Tokens per second. None maximises the ratio P(S) / T(S); a number lambda from 0 to 1e18
        maximises the surplus P(S) - lambda * T(S).
    max_nodes : int, optional
        Largest size allowed, roots included.
    time_limit : float, optional
        Seconds after which the best solution so far is returned with a valid bound.
    **method_options
        Options of the method; see its file under ``specfit_opt/methods``.

    Returns
    -------
    Solution
        For ``exact``: status OPTIMAL with gap 0, the fewest nodes among equals, or, past
        ``time_limit``, FEASIBLE with ``bound`` and ``gap``.

    Raises
    ------
    InvalidInputError
        If the parts disagree, an argument is out of range or an option is unknown.
    MissingExtraError
        If the method needs a package that is not installed.

    Notes
    -----
    Polynomial for affine and concave node time, NP-hard for other tables; see the theory page. An
    interrupt (Ctrl-C) ends a solve at once, also one without ``time_limit``. What numbers and sizes
    are taken is told by the three classes and by :mod:`specfit_opt.limits`.

    Examples
    --------
    >>> from specfit_opt import CostModel, DraftTree, ExpertRouting, solve
    >>> tree = DraftTree([-1, 0, 0], [1.0, 0.8, 0.1])
    >>> routing = ExpertRouting([[[0, 1]], [[0, 2]], [[3, 4]]], n_experts=5)
    >>> cost = CostModel(fixed_time=1.0, node_time=0.01, expert_time=0.2)
    >>> solve(tree, routing, cost).nodes.tolist()
    [0, 1]
    """
    instance = Instance(tree, routing, cost_model)
    return solve_instance(
        instance,
        method=method,
        rate=rate,
        max_nodes=max_nodes,
        time_limit=time_limit,
        **method_options,
    )


def solve_instance(
    instance: Instance,
    *,
    method: str = "exact",
    rate: float | None = None,
    max_nodes: int | None = None,
    time_limit: float | None = None,
    **method_options: Any,
) -> Solution:
    """Choose the best subtree of a problem that is already one :class:`Instance`.

    Parameters
    ----------
    instance : Instance
        The problem.
    method : str
        As for :func:`solve`, like all that follows.
    rate : float, optional
        In tokens per second.
    max_nodes : int, optional
        In nodes, roots included.
    time_limit : float, optional
        In seconds.
    **method_options
        Options of the method.

    Returns
    -------
    Solution
        As for :func:`solve`.

    Raises
    ------
    InvalidInputError
        If an argument is out of range or an option is unknown.
    MissingExtraError
        If the method needs a package that is not installed.
    """
    if not isinstance(instance, Instance):
        raise InvalidInputError(f"expected an Instance, got {type(instance).__name__}")
    select = METHODS.find(method).select
    rate = RATE(rate, "rate")
    if max_nodes is not None:
        max_nodes = checked_max_nodes(max_nodes, instance)
    time_limit = TIME_LIMIT(time_limit, "time_limit")
    if method_options:
        check_options(method, method_options)
    return select(instance, rate=rate, max_nodes=max_nodes, time_limit=time_limit, **method_options)


def check_options(method: str, options: dict[str, Any]) -> None:
    """Raise InvalidInputError if ``method`` does not take one of ``options``."""
    known = METHODS.find(method).options
    for name in options:
        if name not in known:
            raise InvalidInputError(
                f"method {method!r} has no option {name!r}; it takes {', '.join(known) or 'none'}"
            )
