"""Recorded decoding: the draft tree, true routing and acceptance at every position of a text.

A trace is one ``.npz`` archive without pickles. It holds one cycle per committed position, so a
policy that emits m tokens goes on at the cycle m positions later: the text does not depend on
the policy, and any policy can be replayed.

====================  ====================  ======================================================
array                 dtype, shape          meaning
====================  ====================  ======================================================
``cycle_start``       int64 (C + 1,)        first node of every cycle, and the number of nodes
``prompt``            int32 (C,)            prompt of the cycle
``position``          int32 (C,)            position within the prompt's output
``parent``            int32 (N,)            parent within the cycle, -1 for its root
``token``             int32 (N,)            token id
``path_prob``         float32 (N,)          product of the drafter's probabilities
``depth``             int16 (N,)            edges from the root
``accepted``          bool (N,)             on the path that the target takes; the root always is
``experts``           int16 (N, L, k)       expert ids, -1 pads; int32 where ids exceed int16
``n_experts``         integer               experts per layer
``expert_bytes``      int64 (L,)            optional: bytes of one expert of each layer
``states``            float16 (N, H)        optional: the drafter's hidden state at the parent, from
                                            which the node was drafted; the root's is that of the
                                            token before it, zeros where it was not known
====================  ====================  ======================================================

The whole pool of candidates was verified. A chosen subtree emits 1 token plus its accepted nodes
other than the root; since the subtree is ancestor-closed it reaches them without a gap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays import float_array, frozen, integer_array
from ..checks import Whole
from ..cost import CostModel
from ..errors import InvalidInputError
from ..instance import Instance
from ..routing import ExpertRouting
from ..tree import DraftTree
from .archive import Field, named, read_archive
from .atomic import atomic_write
from .trace_checks import check_trace

FIELDS = (
    Field("cycle_start", ("int64",), ("C+1",)),
    Field("prompt", ("int32",), ("C",)),
    Field("position", ("int32",), ("C",)),
    Field("parent", ("int32",), ("N",)),
    Field("token", ("int32",), ("N",)),
    Field("path_prob", ("float32",), ("N",)),
    Field("depth", ("int16",), ("N",)),
    Field("accepted", ("bool",), ("N",)),
    Field("experts", ("int16", "int32"), ("N", "L", "k")),
    Field.count("n_experts", sets="E"),
    Field("expert_bytes", ("int64",), ("L",), optional=True),
    Field("states", ("float16",), ("N", "H"), optional=True),
)


@dataclass(frozen=True, eq=False)
class TraceCycle:
    """One cycle of a :class:`Trace`.

    Attributes
    ----------
    trace : Trace
    index : int
        Number of the cycle in the trace.

    Notes
    -----
    ``token``, ``accepted``, ``experts`` and ``states`` are read-only views into the trace, one
    entry per node.
    """

    trace: Trace = field(repr=False)
    index: int

    @property
    def prompt(self) -> int:
        """Which text the cycle belongs to."""
        return int(self.trace.prompt[self.index])

    @property
    def position(self) -> int:
        """Position in the text's output."""
        return int(self.trace.position[self.index])

    @property
    def token(self) -> NDArray[np.int32]:
        """Token ids."""
        return self.trace.token[self._nodes]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each node is on the path that the target takes."""
        return self.trace.accepted[self._nodes]

    @property
    def experts(self) -> NDArray[np.integer]:
        """True expert ids."""
        return self.trace.experts[self._nodes]

    @property
    def states(self) -> NDArray[np.float16] | None:
        """The drafter's states, or None where none were recorded."""
        return None if self.trace.states is None else self.trace.states[self._nodes]

    @cached_property
    def tree(self) -> DraftTree:
        """The draft tree, built at the first use."""
        return DraftTree(self.trace.parent[self._nodes], self.trace.path_prob[self._nodes])

    @cached_property
    def routing(self) -> ExpertRouting:
        """The true experts, packed at the first use; nothing resident."""
        return ExpertRouting(self.experts, self.trace.n_experts)

    @cached_property
    def _nodes(self) -> slice:
        start, stop = self.trace.cycle_start[self.index : self.index + 2].tolist()
        return slice(start, stop)


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded cycles; the arrays are those of the file format, see this module's docstring.

    Parameters
    ----------
    cycle_start : array_like of int, shape (C + 1,)
    prompt, position : array_like of int, shape (C,)
    parent, token, depth : array_like of int, shape (N,)
    path_prob : array_like of float, shape (N,)
        Kept in single precision. May exceed the parent's by rounding (1e-6).
    accepted : array_like of bool, shape (N,)
    experts : array_like of int, shape (N, L, k)
    n_experts : int
    expert_bytes : array_like of int, shape (L,), optional
    name : str, optional
        A label for tables and messages.
    states : array_like of float, shape (N, H), optional
        Kept in half precision.

    Raises
    ------
    InvalidInputError
        If shapes disagree; offsets do not start at 0, rise and end at N; a cycle does not begin
        with its only root; a parent does not precede its child within the cycle; a depth or path
        probability contradicts the parents; the root is not accepted; accepted nodes are not one
        path from the root; a prompt's positions are not consecutive; an id is out of range; or a
        state is not finite in half precision.

    Notes
    -----
    Checks take O(N L k). A cycle costs nothing until it is looked at; its tree and packed routing
    are then kept, because a replay visits every cycle once per policy.
    """

    cycle_start: NDArray[np.int64]
    prompt: NDArray[np.int32]
    position: NDArray[np.int32]
    parent: NDArray[np.int32]
    token: NDArray[np.int32]
    path_prob: NDArray[np.float32]
    depth: NDArray[np.int16]
    accepted: NDArray[np.bool_]
    experts: NDArray[np.integer]
    n_experts: int
    expert_bytes: NDArray[np.int64] | None = None
    name: str = ""
    states: NDArray[np.float16] | None = None

    def __init__(
        self,
        cycle_start: ArrayLike,
        prompt: ArrayLike,
        position: ArrayLike,
        parent: ArrayLike,
        token: ArrayLike,
        path_prob: ArrayLike,
        depth: ArrayLike,
        accepted: ArrayLike,
        experts: ArrayLike,
        n_experts: int,
        expert_bytes: ArrayLike | None = None,
        name: str = "",
        states: ArrayLike | None = None,
    ) -> None:
        put: dict[str, Any] = {
            "cycle_start": integer_array(cycle_start, "cycle_start", 1, np.int64),
            "prompt": integer_array(prompt, "prompt", 1),
            "position": integer_array(position, "position", 1),
            "parent": integer_array(parent, "parent", 1),
            "token": integer_array(token, "token", 1),
            "path_prob": _single(path_prob),
            "depth": integer_array(depth, "depth", 1, np.int16),
            "accepted": _flags(accepted),
            "experts": _ids(experts),
            "n_experts": Whole(1)(n_experts, "n_experts"),
            "expert_bytes": None
            if expert_bytes is None
            else integer_array(expert_bytes, "expert_bytes", 1, np.int64),
            "name": name,
            "states": None if states is None else _half(states),
        }
        for key, value in put.items():
            object.__setattr__(self, key, value)
        check_trace(self)
        object.__setattr__(self, "_cycles", {})

    @property
    def n_cycles(self) -> int:
        """Number of cycles, C."""
        return len(self.prompt)

    @property
    def n_nodes(self) -> int:
        """Number of nodes of all cycles, N."""
        return len(self.parent)

    @property
    def n_layers(self) -> int:
        """Number of MoE layers, L."""
        return int(self.experts.shape[1])

    @cached_property
    def max_depth(self) -> int:
        """Greatest depth of any node: the levels that were drafted."""
        return int(self.depth.max())

    @cached_property
    def prompts(self) -> tuple[tuple[int, int], ...]:
        """First cycle of each prompt and the cycle after its last."""
        edges = [0, *(np.flatnonzero(np.diff(self.prompt)) + 1).tolist(), self.n_cycles]
        return tuple(pairwise(edges))

    def cycle(self, index: int) -> TraceCycle:
        """Return cycle ``index``, 0 to ``n_cycles`` - 1.

        Raises
        ------
        InvalidInputError
            If there is no such cycle.
        """
        cycles: dict[int, TraceCycle] = self._cycles  # type: ignore[attr-defined]
        found = cycles.get(index)
        if found is None:
            index = Whole(0, self.n_cycles - 1)(index, "index of a cycle")
            found = cycles[index] = TraceCycle(self, index)
        return found

    def cycles(self) -> Iterator[TraceCycle]:
        """Iterate over all cycles in order."""
        return map(self.cycle, range(self.n_cycles))

    def select(self, cycles: ArrayLike, name: str | None = None) -> Trace:
        """Return the trace of some of the cycles.

        Parameters
        ----------
        cycles : array_like of bool, shape (C,)
            Which; of each prompt consecutive ones, or none.
        name : str, optional
            Of the new trace; by default this one's.

        Raises
        ------
        InvalidInputError
            If ``cycles`` has another shape or dtype, chooses nothing, or leaves a gap.
        """
        chosen = np.asarray(cycles)
        if chosen.dtype != np.bool_ or chosen.shape != (self.n_cycles,):
            raise InvalidInputError(
                f"cycles must be one bool for each of the {self.n_cycles} cycles, got "
                f"{chosen.dtype} of shape {chosen.shape}"
            )
        sizes = np.diff(self.cycle_start)
        nodes = np.repeat(chosen, sizes)
        return Trace(
            cycle_start=np.concatenate([[0], np.cumsum(sizes[chosen])]),
            prompt=self.prompt[chosen],
            position=self.position[chosen],
            parent=self.parent[nodes],
            token=self.token[nodes],
            path_prob=self.path_prob[nodes],
            depth=self.depth[nodes],
            accepted=self.accepted[nodes],
            experts=self.experts[nodes],
            n_experts=self.n_experts,
            expert_bytes=self.expert_bytes,
            states=None if self.states is None else self.states[nodes],
            name=self.name if name is None else name,
        )

    def instance(
        self, index: int, cost_model: CostModel, resident: ArrayLike | None = None
    ) -> Instance:
        """Return cycle ``index`` as a selection problem.

        Parameters
        ----------
        index : int
        cost_model : CostModel
        resident : array_like of bool, shape (L, E), optional
            Cache content before the pass. Default: nothing.

        Returns
        -------
        Instance

        Raises
        ------
        InvalidInputError
            If the cycle does not exist or the parts disagree.
        """
        cycle = self.cycle(index)
        routing = cycle.routing
        if resident is not None:
            routing = routing.with_resident(resident)
        label = f"{self.name or 'trace'}:{cycle.prompt}/{cycle.position}"
        return Instance(cycle.tree, routing, cost_model, name=label)

    def __len__(self) -> int:
        return self.n_cycles

    def __repr__(self) -> str:
        return (
            f"Trace(name={self.name!r}, n_cycles={self.n_cycles}, prompts={len(self.prompts)}, "
            f"n_nodes={self.n_nodes}, n_layers={self.n_layers}, n_experts={self.n_experts})"
        )


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Load a trace.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    Trace
        Named after the file.

    Raises
    ------
    InvalidInputError
        If the file is truncated, foreign or pickled, an array is missing, unknown or of another
        dtype or shape, or the trace contradicts itself. The message starts with the file's name.
    OSError
        If the file cannot be opened.
    """
    arrays = read_archive(path, FIELDS, "a trace file", "specfit_opt.save_trace")
    n_experts = int(arrays.pop("n_experts"))
    with named(path):
        return Trace(**arrays, n_experts=n_experts, name=Path(path).stem)


def save_trace(path: str | os.PathLike[str], trace: Trace) -> None:
    """Save a trace, whole or not at all.

    Parameters
    ----------
    path : str or path-like
        Should end in ``.npz``; replaced if it exists.
    trace : Trace

    Raises
    ------
    InvalidInputError
        For another extension, or something that is no Trace.
    OSError
        If the file cannot be written; an older file is then as it was.
    """
    if not isinstance(trace, Trace):
        raise InvalidInputError(
            f"expected a Trace, got {type(trace).__name__}; the order is path, trace"
        )
    if Path(path).suffix.lower() != ".npz":
        raise InvalidInputError(f"{os.fspath(path)}: a trace file must end in .npz")
    arrays: dict[str, Any] = {f.name: getattr(trace, f.name) for f in FIELDS}
    arrays["n_experts"] = np.int32(trace.n_experts)
    narrow = trace.n_experts - 1 <= np.iinfo(np.int16).max
    arrays["experts"] = trace.experts.astype(np.int16 if narrow else np.int32)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    with atomic_write(path) as handle:
        np.savez_compressed(handle, **arrays)


def _single(value: ArrayLike) -> NDArray[np.float32]:
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return frozen(np.array(value, order="C") if value.flags.writeable else value)
    return frozen(float_array(value, "path_prob").astype(np.float32))


def _half(value: ArrayLike) -> NDArray[np.float16]:
    if isinstance(value, np.ndarray) and value.dtype == np.float16:
        states = np.array(value, order="C") if value.flags.writeable else value
    else:
        with np.errstate(over="ignore"):
            states = np.array(value, dtype=np.float16, order="C")
    bad = np.flatnonzero(~np.isfinite(states.reshape(len(states), -1)).all(axis=1))
    if bad.size:
        raise InvalidInputError(
            f"states[{bad[0]}] is not finite in half precision; every state must be"
        )
    return frozen(states)


def _flags(value: ArrayLike) -> NDArray[np.bool_]:
    flags = np.array(value, order="C")
    if flags.dtype != np.bool_:
        raise InvalidInputError(f"accepted must hold bool, got dtype {flags.dtype}")
    return frozen(flags)


def _ids(value: ArrayLike) -> NDArray[np.integer]:
    ids = np.asarray(value)
    dtype = np.int16 if ids.dtype == np.int16 else np.int32
    return integer_array(value, "experts", 3, dtype)
