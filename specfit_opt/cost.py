"""The cost model: how long a verification pass over a subtree takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import float_array, frozen, is_scalar, refreeze
from .errors import InvalidInputError
from .limits import MOST_SECONDS, SECONDS

_PER_NODE = replace(SECONDS, unit="seconds per node")
_PER_EXPERT = replace(SECONDS, unit="seconds per expert")


@dataclass(frozen=True, eq=False)
class CostModel:
    """Time of one cycle: fixed part, part by node count, part by the union of experts.

    ``T(S) = fixed_time + node_time(|S|) + sum over layers l and experts e in the union of
    (resident_time if resident else expert_time[l, e])``, all in seconds. ``|S|``
    counts the roots.

    Parameters
    ----------
    fixed_time : float
        Seconds that do not depend on the choice: drafting already done, fixed part of a pass.
    node_time : float or array_like of float, shape (m,)
        Seconds per node, or a table indexed by ``|S|`` (entry 0 is not used), m >= n + 1. An
        infinite entry forbids that size.
    expert_time : float or array_like of float, shape (L,) or (L, E)
        Seconds to bring in one expert that is not resident: one for all, per layer, or per layer
        and expert.
    resident_time : float
        Seconds that a resident expert costs once per pass: 0 when transfer dominates, positive
        when reading weights from fast memory is what costs.

    Attributes
    ----------
    fixed_time, resident_time : float
    node_time : float or ndarray of float64, shape (m,)
    expert_time : float or ndarray of float64, shape (L,) or (L, E)
        Arrays are read-only.

    Raises
    ------
    InvalidInputError
        For NaN, negative or infinite times (a node_time table may hold inf) or times above 1e12
        seconds, tables of the wrong rank, or a table that forbids every size.

    Notes
    -----
    Every time is 0 or positive and at most 1e12 seconds; only a ``node_time`` table may hold inf. A
    problem also needs a pass of 1e-12 seconds at least: ``fixed_time`` and the ``node_time`` of
    every size that is allowed. Within this range (:mod:`specfit_opt.limits`) nothing overflows or
    vanishes.
    """

    fixed_time: float
    node_time: float | NDArray[np.float64]
    expert_time: float | NDArray[np.float64]
    resident_time: float = 0.0
    # Caches; neither depends on fixed_time, so with_fixed_time shares them.
    _layouts: dict[tuple[int, int], NDArray[np.float64]] = field(init=False, repr=False)
    _least_times: dict[tuple[int, int], float] = field(init=False, repr=False)

    def __init__(
        self,
        fixed_time: float,
        node_time: float | ArrayLike,
        expert_time: float | ArrayLike,
        resident_time: float = 0.0,
    ) -> None:
        put = object.__setattr__
        put(self, "fixed_time", SECONDS(fixed_time, "fixed_time"))
        put(self, "resident_time", SECONDS(resident_time, "resident_time"))
        put(self, "node_time", _checked_node_time(node_time))
        put(self, "expert_time", _checked_expert_time(expert_time))
        put(self, "_layouts", {})
        put(self, "_least_times", {})

    def node_table(self, n_nodes: int) -> NDArray[np.float64]:
        """Return the time by node count as a table, in seconds.

        Parameters
        ----------
        n_nodes : int
            Largest size that the table has to cover, n.

        Returns
        -------
        ndarray of float64, shape (n + 1,)
            Indexed by node count; inf forbids that size.

        Raises
        ------
        InvalidInputError
            If the model holds a table that is too short.
        """
        if isinstance(self.node_time, float):
            return self.node_time * np.arange(n_nodes + 1, dtype=np.float64)
        self.require_table(n_nodes)
        return self.node_time[: n_nodes + 1]

    def require_table(self, n_nodes: int) -> None:
        """Check that a node_time table has an entry for ``n_nodes`` nodes.

        Parameters
        ----------
        n_nodes : int

        Raises
        ------
        InvalidInputError
            If it has not.
        """
        if not isinstance(self.node_time, float) and len(self.node_time) < n_nodes + 1:
            raise InvalidInputError(
                f"node_time has {len(self.node_time)} entries but the tree has {n_nodes} nodes; "
                f"the table is indexed by node count and needs at least {n_nodes + 1} "
                "(inf for sizes that are not allowed)"
            )

    def expert_table(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        """Return ``expert_time`` for every expert of every layer, in seconds.

        Parameters
        ----------
        n_layers, n_experts : int
            L and E of the routing.

        Returns
        -------
        ndarray of float64, shape (L, E)

        Raises
        ------
        InvalidInputError
            If the model's array is for other numbers of layers or experts.
        """
        time = self.expert_time
        if isinstance(time, float):
            return np.full((n_layers, n_experts), time)
        self.require_experts(n_layers, n_experts)
        if time.ndim == 1:
            return np.repeat(time[:, None], n_experts, axis=1)
        return time

    def require_experts(self, n_layers: int, n_experts: int) -> None:
        """Check that ``expert_time`` fits a routing.

        Parameters
        ----------
        n_layers, n_experts : int
            L and E of the routing.

        Raises
        ------
        InvalidInputError
            If it is for other numbers of layers or experts.
        """
        time = self.expert_time
        if isinstance(time, float):
            return
        expected = (n_layers,) if time.ndim == 1 else (n_layers, n_experts)
        if time.shape != expected:
            raise InvalidInputError(
                f"expert_time has shape {time.shape} but the routing has {n_layers} layers of "
                f"{n_experts} experts; give a number, shape ({n_layers},) or "
                f"({n_layers}, {n_experts})"
            )

    def kernel_expert_time(self, n_layers: int, n_experts: int) -> NDArray[np.float64]:
        """Return ``expert_time`` as the kernel takes it.

        The result is cached, because the choice of the shape needs a look at every entry.

        Parameters
        ----------
        n_layers, n_experts : int
            L and E of the routing.

        Returns
        -------
        ndarray of float64, shape (L,) or (L, E)
            Seconds; (L,) if all experts of a layer cost the same.

        Raises
        ------
        InvalidInputError
            If the model's array is for other numbers of layers or experts.
        """
        cache = self._layouts
        found = cache.get((n_layers, n_experts))
        if found is None:
            time = self.expert_time
            if isinstance(time, float):
                found = np.full(n_layers, time)
            else:
                self.require_experts(n_layers, n_experts)
                uniform = time.ndim == 2 and bool((time == time[:, :1]).all())
                found = np.ascontiguousarray(time[:, 0]) if uniform else time
            found = frozen(found)
            cache[(n_layers, n_experts)] = found
        return found

    def least_node_time(self, first: int, last: int) -> float:
        """Return the least node time of the sizes from ``first`` to ``last``.

        The result is cached: a decode loop asks for the same sizes again and again.

        Parameters
        ----------
        first, last : int
            Sizes, 1 <= first <= last.

        Returns
        -------
        float
            Seconds; inf if every one of the sizes is forbidden.

        Raises
        ------
        InvalidInputError
            If the model holds a table that is too short.
        """
        time = self.node_time
        if isinstance(time, float):
            return time * first
        least = self._least_times.get((first, last))
        if least is None:
            self.require_table(last)
            least = float(time[first : last + 1].min())
            self._least_times[first, last] = least
        return least

    def with_fixed_time(self, fixed_time: float) -> CostModel:
        """Return the same model with another ``fixed_time``.

        Parameters
        ----------
        fixed_time : float
            Seconds.

        Returns
        -------
        CostModel

        Raises
        ------
        InvalidInputError
            If it is NaN, negative or above 1e12 seconds.
        """
        other = object.__new__(CostModel)
        other.__dict__.update(self.__dict__)
        checked = SECONDS(fixed_time, "fixed_time")
        object.__setattr__(other, "fixed_time", checked)
        return other

    __setstate__ = refreeze

    def __repr__(self) -> str:
        def show(value: float | NDArray[np.float64]) -> str:
            return f"{value:g}" if isinstance(value, float) else f"<table {value.shape}>"

        return (
            f"CostModel(fixed_time={self.fixed_time:g}, node_time={show(self.node_time)}, "
            f"expert_time={show(self.expert_time)}, resident_time={self.resident_time:g})"
        )


def _checked_node_time(value: float | ArrayLike) -> float | NDArray[np.float64]:
    if is_scalar(value, "node_time"):
        per_node: float = _PER_NODE(value, "node_time")
        return per_node
    table = float_array(value, "node_time")
    if table.ndim != 1 or len(table) < 2:
        raise InvalidInputError(
            f"node_time must be a number or a table indexed by node count, got shape {table.shape}"
        )
    sizes = table[1:]  # entry 0 stands for no nodes, which no subtree has
    good = (sizes >= 0.0) & ((sizes <= MOST_SECONDS) | (sizes == np.inf))
    if not good.all():
        k = int(np.argmin(good)) + 1
        if not table[k] >= 0.0:
            raise InvalidInputError(f"node_time[{k}] = {table[k]}; times must be >= 0 seconds")
        raise InvalidInputError(
            f"node_time[{k}] = {table[k]}; times must be at most {MOST_SECONDS:g} seconds (write "
            "inf for a size that is not allowed)"
        )
    if np.isinf(sizes).all():
        raise InvalidInputError("node_time forbids every size (all entries are inf)")
    return table


def _checked_expert_time(value: float | ArrayLike) -> float | NDArray[np.float64]:
    if is_scalar(value, "expert_time"):
        per_expert: float = _PER_EXPERT(value, "expert_time")
        return per_expert
    time = float_array(value, "expert_time")
    if time.ndim > 2:
        raise InvalidInputError(
            f"expert_time must be a number or have shape (L,) or (L, E), got shape {time.shape}"
        )
    bad = np.argwhere(~((time >= 0.0) & (time <= MOST_SECONDS)))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        wanted = "finite and >= 0"
        if 0.0 <= time[where] < np.inf:
            wanted = f"at most {MOST_SECONDS:g}"
        raise InvalidInputError(
            f"expert_time[{', '.join(map(str, where))}] = {time[where]}; times must be {wanted} "
            "seconds"
        )
    return time
