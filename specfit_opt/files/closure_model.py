"""The fixed-rate problem as a mixed-integer program, ready to be written in any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..expert_union import expert_prices, used_experts
from ..instance import Instance, checked_max_nodes
from ..limits import RATE

#: A row that is no arc: name, columns, coefficients, "L" or "E", right-hand side.
Link: TypeAlias = tuple[str, NDArray[np.int64], NDArray[np.float64], str, float]


@dataclass(frozen=True, eq=False)
class ClosureModel:
    """Maximise ``objective @ columns``: the surplus P(S) - rate * T(S) over closed sets S.

    Attributes
    ----------
    columns : list of str
        ``x_<node>``, then ``y_<layer>_<expert>`` (``y_<scenario>_<layer>_<expert>`` where the
        routing is made of scenarios), then ``s_<size>``, then ``constant``.
    objective : ndarray of float64, shape (n_columns,)
    binary : ndarray of bool, shape (n_columns,)
        Columns that must be 0 or 1. The others lie in [0, 1].
    fixed : ndarray of bool, shape (n_columns,)
        Columns that are 1: roots and ``constant``.
    arcs : ndarray of int64, shape (n_arcs, 2)
        Columns (a, b) with a <= b: a node and its parent, a node and an expert that it uses.
    arc_names : list of str
        ``p_<node>`` and ``u_<node>_<layer>_<expert>``.
    links : list of (name, columns, coefficients, sense, right-hand side)
        The few other rows: ``size``, ``one_size``, ``max_nodes``. Sense is "L" or "E".
    comment : list of str
        Lines in ASCII that explain the file.
    """

    columns: list[str]
    objective: NDArray[np.float64]
    binary: NDArray[np.bool_]
    fixed: NDArray[np.bool_]
    arcs: NDArray[np.int64]
    arc_names: list[str]
    links: list[Link]
    comment: list[str]


def closure_model(instance: Instance, rate: float, max_nodes: int | None = None) -> ClosureModel:
    """Return the program whose optimum is that of the problem at the fixed rate ``rate``.

    Parameters
    ----------
    instance : Instance
    rate : float
        lambda, tokens per second, >= 0.
    max_nodes : int, optional
        Largest size allowed, roots included.

    Returns
    -------
    ClosureModel

    Raises
    ------
    InvalidInputError
        If ``rate`` or ``max_nodes`` is out of range.

    Notes
    -----
    One row per node and expert that it uses: O(n L k) rows, O(n L E) time. With an affine
    ``node_time`` and no ``max_nodes`` the relaxation is a closure problem and has integral vertices
    (Picard 1976); a table adds one binary per allowed size.
    """
    value: float | None = RATE(rate, "rate")
    if value is None:
        raise InvalidInputError(
            "rate must be a number of tokens per second; the ratio itself is no linear program "
            "(take the throughput of a solution)"
        )
    tree, cost = instance.tree, instance.cost_model
    n, n_roots = tree.n_nodes, tree.n_roots
    limit = n if max_nodes is None else min(checked_max_nodes(max_nodes, instance), n)

    uses = _Uses.of(instance)
    columns = [f"x_{v}" for v in range(n)] + uses.columns
    weights = [tree.path_prob, -value * uses.price]
    children = np.flatnonzero(tree.parent >= 0)
    parents = np.column_stack([children, tree.parent[children]]).astype(np.int64)
    arc_names = [f"p_{v}" for v in children.tolist()] + uses.arc_names

    links: list[Link] = []
    sizes = np.zeros(0, dtype=np.int64)
    if isinstance(cost.node_time, float):
        weights[0] = tree.path_prob - value * cost.node_time
        if limit < n:
            links.append(("max_nodes", np.arange(n), np.ones(n), "L", float(limit)))
    else:
        table = cost.node_table(n)
        sizes = n_roots + np.flatnonzero(np.isfinite(table[n_roots : limit + 1]))
        links = _size_links(n, len(columns), sizes)
        columns += [f"s_{k}" for k in sizes.tolist()]
        weights.append(-value * table[sizes])
    columns.append("constant")
    weights.append(np.array([-value * cost.fixed_time]))

    fixed = np.zeros(len(columns), dtype=np.bool_)
    fixed[tree.roots] = True
    fixed[-1] = True
    binary = np.zeros(len(columns), dtype=np.bool_)
    binary[:n] = True
    binary[len(columns) - 1 - len(sizes) : -1] = True
    return ClosureModel(
        columns=columns,
        objective=np.concatenate(weights),
        binary=binary & ~fixed,
        fixed=fixed,
        arcs=np.concatenate([parents, uses.arcs]),
        arc_names=arc_names,
        links=links,
        comment=_comment(instance, value, None if max_nodes is None else limit, len(sizes) > 0),
    )


@dataclass(frozen=True)
class _Uses:
    """The experts that cost something, as columns after the nodes', and who uses them."""

    columns: list[str]
    price: NDArray[np.float64]  # of each, in seconds
    arcs: NDArray[np.int64]  # from a node to the column of an expert that it uses
    arc_names: list[str]

    @classmethod
    def of(cls, instance: Instance) -> _Uses:
        routing, n = instance.routing, instance.tree.n_nodes
        price = expert_prices(instance).reshape(-1, routing.n_experts)
        used = used_experts(routing).reshape(n, *price.shape) & (price > 0.0)
        places = [str(layer) for layer in range(routing.n_layers)]
        if routing.scenario_weights is not None:
            places = [f"{m}_{layer}" for m in range(routing.n_scenarios) for layer in places]
        layers, experts = np.nonzero(used.any(axis=0))
        pairs = list(zip(layers.tolist(), experts.tolist(), strict=True))
        column_of = {pair: n + i for i, pair in enumerate(pairs)}
        uses = [
            (v, column_of[at, e], f"{places[at]}_{e}") for v, at, e in np.argwhere(used).tolist()
        ]
        return cls(
            columns=[f"y_{places[at]}_{e}" for at, e in pairs],
            price=price[layers, experts],
            arcs=np.array([(v, column) for v, column, _ in uses], dtype=np.int64).reshape(-1, 2),
            arc_names=[f"u_{v}_{name}" for v, _, name in uses],
        )


def _size_links(n_nodes: int, first: int, sizes: NDArray[np.int64]) -> list[Link]:
    """Return the rows that choose one of ``sizes`` by columns from ``first`` on."""
    switches = first + np.arange(len(sizes))
    columns = np.concatenate([np.arange(n_nodes), switches])
    signs = np.concatenate([np.ones(n_nodes), -sizes.astype(np.float64)])
    return [
        ("size", columns, signs, "E", 0.0),
        ("one_size", switches, np.ones(len(sizes)), "E", 1.0),
    ]


def _comment(instance: Instance, rate: float, limit: int | None, sized: bool) -> list[str]:
    tree, routing = instance.tree, instance.routing
    uncertain, scenario = "", ""
    if routing.scenario_weights is not None:
        uncertain, scenario = f", scenarios {routing.n_scenarios}", "<scenario>_"
    # A name may hold anything; a line break or a letter beyond ASCII would break some readers.
    name = " ".join(instance.name.split()).encode("ascii", "backslashreplace").decode()
    lines = [
        "specfit: the best draft subtree at a fixed rate, as a maximum-weight closure problem",
        f"instance: {name or 'unnamed'}",
        f"nodes {tree.n_nodes}, roots {tree.n_roots}, layers {routing.n_layers}, experts per "
        f"layer {routing.n_experts}{uncertain}",
        "",
        "maximise  P(S) - rate * T(S)  over the ancestor-closed sets S that hold every root",
        f"rate = {rate!r} tokens per second; times in seconds; the value is in tokens",
        "rate is the best throughput exactly when the optimum is 0",
        "",
        "x_<node>            1 when S holds the node; roots are fixed to 1",
        f"y_{scenario}<layer>_<expert>  1 when a node of S uses the expert; only experts that cost",
        "                    time have one; continuous: an optimum takes the least value, 0 or 1",
    ]
    if sized:
        lines.append("s_<size>            1 when S has that many nodes; one per allowed size")
    lines += [
        "constant            fixed to 1; its coefficient is -rate * fixed_time",
        "p_<node>            the node needs its parent",
        f"u_<node>_{scenario}<layer>_<expert>  the node needs the expert",
    ]
    if sized:
        lines.append("size, one_size      the number of nodes is one allowed size")
    if limit is not None:
        lines.append(f"at most {limit} nodes")
    return lines
