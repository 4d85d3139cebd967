"""What a trace must fulfil: shapes, offsets, positions, parents, acceptance and experts agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..arrays import first
from ..errors import InvalidInputError
from ..tree import PROBABILITY_TOLERANCE

if TYPE_CHECKING:
    from .trace import Trace


def check_trace(trace: Trace) -> None:
    """Check that the parts of a trace agree.

    Raises
    ------
    InvalidInputError
        Names the cycle and the node, where it is one's fault.
    """
    _check_shapes(trace)
    _check_cycles(trace)
    _check_positions(trace)
    start = trace.cycle_start
    base = np.repeat(start[:-1], np.diff(start))
    _check_parents(trace, np.arange(trace.n_nodes) - base)
    is_root = trace.parent < 0
    above = np.where(is_root, 0, base + trace.parent)
    _check_nodes(trace, is_root, above)
    _check_accepted(trace, is_root, above)
    _check_experts(trace)


def _check_shapes(trace: Trace) -> None:
    n, cycles = len(trace.parent), len(trace.cycle_start) - 1
    for name in ("token", "path_prob", "depth", "accepted", "experts"):
        array = getattr(trace, name)
        if array.shape[:1] != (n,) or array.ndim != (3 if name == "experts" else 1):
            raise InvalidInputError(
                f"parent has {n} nodes but {name} has shape {array.shape}; give one entry per node"
            )
    states = trace.states
    if states is not None and (states.ndim != 2 or len(states) != n or not states.shape[1]):
        raise InvalidInputError(
            f"parent has {n} nodes but states has shape {states.shape}; give one row per node"
        )
    for name in ("prompt", "position"):
        if len(getattr(trace, name)) != cycles:
            raise InvalidInputError(
                f"cycle_start has {cycles + 1} entries but {name} has {len(getattr(trace, name))}; "
                "give one offset per cycle and the number of nodes at the end"
            )


def _check_cycles(trace: Trace) -> None:
    start, n = trace.cycle_start, len(trace.parent)
    if len(start) < 2:
        raise InvalidInputError("the trace has no cycle; cycle_start needs at least 0 and N")
    if start[0] != 0 or start[-1] != n:
        raise InvalidInputError(
            f"cycle_start runs from {start[0]} to {start[-1]} but must run from 0 to the number "
            f"of nodes, {n}"
        )
    if (i := first(np.diff(start) <= 0)) is not None:
        raise InvalidInputError(
            f"cycle_start[{i + 1}] = {start[i + 1]} does not exceed cycle_start[{i}] = "
            f"{start[i]}; offsets must ascend, since every cycle has its root"
        )


def _check_positions(trace: Trace) -> None:
    prompt, position = trace.prompt, trace.position
    for name, array in (("prompt", prompt), ("position", position)):
        if (i := first(array < 0)) is not None:
            raise InvalidInputError(f"{name}[{i}] = {array[i]} is negative; count from 0")
    same = prompt[1:] == prompt[:-1]
    if (gap := first(same & (np.diff(position) != 1))) is not None:
        i = gap + 1
        raise InvalidInputError(
            f"cycle {i} of prompt {prompt[i]} is at position {position[i]} but the one before at "
            f"{position[i - 1]}; record one cycle per position, in order"
        )
    begins = prompt[np.concatenate(([True], ~same))]
    values, counts = np.unique(begins, return_counts=True)
    if (counts > 1).any():
        raise InvalidInputError(
            f"prompt {values[counts > 1][0]} comes back after another prompt; keep its cycles "
            "together"
        )


def _check_parents(trace: Trace, local: NDArray[np.int64]) -> None:
    parent = trace.parent
    _refuse(
        trace,
        (local == 0) & (parent != -1),
        lambda v: f"parent = {parent[v]}; a cycle begins with its root (-1)",
    )
    _refuse(
        trace,
        (local > 0) & ((parent < 0) | (parent >= local)),
        lambda v: (
            f"parent = {parent[v]}; it must be a node of the same cycle that comes earlier, "
            f"0 to {local[v] - 1} (a cycle has one root)"
        ),
    )


def _check_nodes(trace: Trace, is_root: NDArray[np.bool_], above: NDArray[np.int64]) -> None:
    depth, prob, token = trace.depth, trace.path_prob, trace.token
    expected = np.where(is_root, 0, depth[above].astype(np.int64) + 1)
    _refuse(
        trace,
        depth != expected,
        lambda v: f"depth = {depth[v]} but parents give {expected[v]}",
    )
    _refuse(
        trace,
        ~((prob >= 0.0) & (prob <= 1.0 + PROBABILITY_TOLERANCE)),
        lambda v: f"path_prob = {prob[v]}; it must be in [0, 1]",
    )
    _refuse(
        trace,
        is_root & (np.abs(prob - 1.0) > PROBABILITY_TOLERANCE),
        lambda v: f"path_prob = {prob[v]}; a root is committed, give it 1",
    )
    _refuse(
        trace,
        ~is_root & (prob.astype(np.float64) - prob[above] > PROBABILITY_TOLERANCE),
        lambda v: (
            f"path_prob = {prob[v]} exceeds that of its parent, {prob[above[v]]}; give the "
            "product along the path"
        ),
    )
    _refuse(trace, token < 0, lambda v: f"token = {token[v]}; token ids count from 0")


def _check_accepted(trace: Trace, is_root: NDArray[np.bool_], above: NDArray[np.int64]) -> None:
    accepted, parent = trace.accepted, trace.parent
    _refuse(
        trace,
        is_root & ~accepted,
        lambda v: "the root is not accepted; it is committed, so it always is",
    )
    _refuse(
        trace,
        accepted & ~is_root & ~accepted[above],
        lambda v: f"it is accepted but its parent {parent[v]} is not",
    )
    followers = np.flatnonzero(accepted & ~is_root)
    _, earliest, counts = np.unique(above[followers], return_index=True, return_counts=True)
    if (fork := first(counts > 1)) is not None:
        v = int(followers[earliest[fork]])
        raise _node_error(
            trace,
            v,
            f"two children of its parent {parent[v]} are accepted; greedy acceptance is a single "
            f"path (node {int(above[v])} of the file forks)",
        )


def _check_experts(trace: Trace) -> None:
    n_experts, ids, size = trace.n_experts, trace.experts, trace.expert_bytes
    outside = (ids < -1) | (ids >= n_experts)
    if outside.any():
        v, layer, slot = (int(i) for i in np.argwhere(outside)[0])
        raise _node_error(
            trace,
            v,
            f"expert {ids[v, layer, slot]} in layer {layer}, slot {slot}; ids are 0 to "
            f"{n_experts - 1}, -1 pads",
        )
    if size is None:
        return
    if size.shape != (trace.n_layers,):
        raise InvalidInputError(
            f"expert_bytes has shape {size.shape} but experts has {trace.n_layers} layers"
        )
    if (empty := first(size <= 0)) is not None:
        raise InvalidInputError(
            f"expert_bytes[{empty}] = {size[empty]}; an expert has a positive size in bytes"
        )


def _refuse(trace: Trace, wrong: NDArray[np.bool_], what: Callable[[int], str]) -> None:
    """Refuse the first node that ``wrong`` marks; ``what`` says of a node what is wrong with it."""
    if (v := first(wrong)) is not None:
        raise _node_error(trace, v, what(v))


def _node_error(trace: Trace, node: int, what: str) -> InvalidInputError:
    cycle = int(np.searchsorted(trace.cycle_start, node, side="right")) - 1
    local = int(node) - int(trace.cycle_start[cycle])
    return InvalidInputError(f"cycle {cycle}, node {local} (node {int(node)} of the file): {what}")
