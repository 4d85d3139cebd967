"""Generate instances: realistic ones by model shape, and ones that are hard on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..checks import Kind, Real, Whole
from ..errors import InvalidInputError
from ..instance import Instance
from ..limits import MOST_NODES, MOST_WORDS, SECONDS, check_size
from .kinds import KINDS, REALISTIC, InstanceKind
from .node_times import NODE_TIMES, NodeTime
from .shapes import SHAPES, ModelShape

_COUNT = Whole(1, MOST_NODES)
_RANGES: dict[str, Kind] = {
    **dict.fromkeys(("nodes", "roots", "layers", "experts", "top_k", "budget"), _COUNT),
    "resident": Real(most=1.0),
    "overlap": Real(most=1.0),
    "skew": Real(most=100.0),
    "time_spread": Real(most=10.0),
    "bandwidth": Real(1.0),
    "resident_time": SECONDS,
    "token_time": SECONDS,
}


def generate(
    kind: str,
    *,
    seed: int,
    nodes: int | None = None,
    roots: int | None = None,
    layers: int | None = None,
    experts: int | None = None,
    top_k: int | None = None,
    node_time: str | None = None,
    budget: int | None = None,
    resident: float | None = None,
    overlap: float | None = None,
    skew: float | None = None,
    bandwidth: float | None = None,
    resident_time: float | None = None,
    token_time: float | None = None,
    time_spread: float | None = None,
) -> Instance:
    """Generate an instance.

    Parameters
    ----------
    kind : str
        A name in :data:`KINDS`.
    seed : int
        The same arguments give the same instance (NumPy's PCG64).
    nodes : int, optional
        Number of nodes, roots included.
    roots : int, optional
        Number of sequences of the batch.
    layers, experts, top_k : int, optional
        MoE layers, experts per layer, experts per token and layer.
    node_time : str, optional
        A name in :data:`NODE_TIMES`: "affine" unless the kind says otherwise.
    budget : int, optional
        Largest size allowed, with ``node_time="budget"``.
    resident : float, optional
        Share of experts in fast memory, in [0, 1].
    overlap : float, optional
        Share of a parent's experts that a child shares on average, in [0, 1]; 1/3 by default.
    skew : float, optional
        Zipf exponent of the experts' popularity.
    bandwidth : float, optional
        Bytes per second of the link that experts come over.
    resident_time : float, optional
        Seconds that a resident expert costs.
    token_time : float, optional
        Seconds per node where node_time is "affine"; the other kinds scale with it.
    time_spread : float, optional
        Standard deviation of the logarithm of the expert times.

    Returns
    -------
    Instance
        Named after the kind, the node time, the size and the seed. Times in seconds.

    Raises
    ------
    InvalidInputError
        If the kind is unknown, does not take an option that is given, or a value is out of range.

    Notes
    -----
    What is None takes the kind's default; ``KINDS[kind].options`` names the options it takes.
    O(n L E) time.

    Examples
    --------
    >>> instance = generate("tiny", seed=1, nodes=12)
    >>> instance.tree.n_nodes, instance.routing.experts.shape
    (12, (12, 4, 4))
    """
    chosen = KINDS.find(kind)
    seed = Whole(most=2**128 - 1)(seed, "seed")
    given: dict[str, Any] = {
        "nodes": nodes,
        "roots": roots,
        "layers": layers,
        "experts": experts,
        "top_k": top_k,
        "node_time": node_time,
        "budget": budget,
        "resident": resident,
        "overlap": overlap,
        "skew": skew,
        "bandwidth": bandwidth,
        "resident_time": resident_time,
        "token_time": token_time,
        "time_spread": time_spread,
    }
    options = {name: value for name, value in given.items() if value is not None}
    _check_options(chosen, options)
    instance = chosen.build(np.random.Generator(np.random.PCG64(seed)), **options)
    return replace(instance, name=_name(kind, instance, options, seed))


def _check_options(kind: InstanceKind, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in kind.options:
            raise InvalidInputError(
                f"kind {kind.name!r} has no option {name!r}; it takes {', '.join(kind.options)}"
            )
        if name in _RANGES:
            options[name] = _RANGES[name](value, name)
    sizes = {name: options.get(name, 64) for name in ("nodes", "layers", "experts", "top_k")}
    check_size(sizes["nodes"], sizes["layers"], sizes["experts"])
    slots = sizes["nodes"] * sizes["layers"] * min(sizes["top_k"], sizes["experts"])
    if slots > MOST_WORDS:
        raise InvalidInputError(
            f"nodes, layers and top_k make {slots} expert ids; at most {MOST_WORDS} are generated"
        )


def _name(kind: str, instance: Instance, options: dict[str, Any], seed: int) -> str:
    parts = [kind]
    if "node_time" in options:
        parts.append(options["node_time"])
    if instance.tree.n_roots > 1:
        parts.append(f"forest{instance.tree.n_roots}")
    return "-".join([*parts, f"n{instance.tree.n_nodes}", f"s{seed}"])


__all__ = [
    "KINDS",
    "NODE_TIMES",
    "REALISTIC",
    "SHAPES",
    "InstanceKind",
    "ModelShape",
    "NodeTime",
    "generate",
]
