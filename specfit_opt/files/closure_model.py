"""The fixed-rate problem as a mixed-integer program, ready to be written in any format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..instance import Instance, checked_max_nodes
from ..limits import RATE
from ..union import expert_prices


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
    links: list[tuple[str, NDArray[np.int64], NDArray[np.float64], str, float]]
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
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    n, n_roots = tree.n_nodes, tree.n_roots
    limit = n if max_nodes is None else min(checked_max_nodes(max_nodes, instance), n)

    price = expert_prices(instance).reshape(-1, routing.n_experts)
    words = routing.rows.reshape(n, len(price), -1)
    used = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little")[
        :, :, : routing.n_experts
    ].astype(np.bool_)
    used &= price > 0.0
    places = [str(layer) for layer in range(routing.n_layers)]
    if routing.scenario_weights is not None:
        places = [f"{m}_{layer}" for m in range(routing.n_scenarios) for layer in places]
    node, layer, expert = (axis.tolist() for axis in np.nonzero(used))
    layers, experts = (axis.tolist() for axis in np.nonzero(used.any(axis=0)))

    columns = [f"x_{v}" for v in range(n)]
    weights = [tree.path_prob]
    column_of = {pair: n + i for i, pair in enumerate(zip(layers, experts, strict=True))}
    columns += [f"y_{places[at]}_{e}" for at, e in column_of]
    weights.append(-value * price[layers, experts])

    children = np.flatnonzero(tree.parent >= 0)
    arcs = [
        np.column_stack([children, tree.parent[children]]).astype(np.int64),
        np.array(
            [(v, column_of[at, e]) for v, at, e in zip(node, layer, expert, strict=True)],
            dtype=np.int64,
        ).reshape(-1, 2),
    ]
    arc_names = [f"p_{v}" for v in children.tolist()]
    arc_names += [f"u_{v}_{places[at]}_{e}" for v, at, e in zip(node, layer, expert, strict=True)]

    links: list[tuple[str, NDArray[np.int64], NDArray[np.float64], str, float]] = []
    nodes = np.arange(n)
    n_sizes = 0
    if isinstance(cost.node_time, float):
        weights[0] = tree.path_prob - value * cost.node_time
        if limit < n:
            links.append(("max_nodes", nodes, np.ones(n), "L", float(limit)))
    else:
        table = cost.node_table(n)
        sizes = n_roots + np.flatnonzero(np.isfinite(table[n_roots : limit + 1]))
        n_sizes = len(sizes)
        switches = len(columns) + np.arange(n_sizes)
        columns += [f"s_{k}" for k in sizes.tolist()]
        weights.append(-value * table[sizes])
        links.append(
            (
                "size",
                np.concatenate([nodes, switches]),
                np.concatenate([np.ones(n), -sizes.astype(np.float64)]),
                "E",
                0.0,
            )
        )
        links.append(("one_size", switches, np.ones(n_sizes), "E", 1.0))
    columns.append("constant")
    weights.append(np.array([-value * cost.fixed_time]))

    fixed = np.zeros(len(columns), dtype=np.bool_)
    fixed[tree.roots] = True
    fixed[-1] = True
    binary = np.zeros(len(columns), dtype=np.bool_)
    binary[:n] = True
    binary[len(columns) - 1 - n_sizes : -1] = True
    return ClosureModel(
        columns=columns,
        objective=np.concatenate(weights),
        binary=binary & ~fixed,
        fixed=fixed,
        arcs=np.concatenate(arcs),
        arc_names=arc_names,
        links=links,
        comment=_comment(instance, value, None if max_nodes is None else limit, n_sizes > 0),
    )


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
