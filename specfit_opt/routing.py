"""The experts that every draft token activates, for certain or by scenario, packed into bitsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernel
from .arrays import as_array, first, float_array, frozen, refreeze
from .checks import Whole
from .errors import InvalidInputError
from .limits import check_size


@dataclass(frozen=True, eq=False)
class ExpertRouting:
    """Which experts each node's token activates in each MoE layer, and which are resident.

    Parameters
    ----------
    experts : array_like of int, shape (n, L, k)
        Expert ids in [0, n_experts) per node, layer and slot. -1 pads unused slots; an id that
        repeats within a node and layer counts once.
    n_experts : int
        Number of experts per layer, E.
    resident : array_like of bool, shape (L, E), optional
        Experts that are in fast memory already. Default: none.

    Attributes
    ----------
    experts : ndarray of int16, int32 or int64, shape (n, L, k)
        (M, n, L, k) where the routing is uncertain, see :meth:`from_scenarios`.
    n_experts : int
    resident : ndarray of bool, shape (L, E)
    scenario_weights : ndarray of float64, shape (M,), or None
        Probabilities of the scenarios; None where the routing is certain.
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
        Bit e % 64 of word l * ceil(E / 64) + e // 64 is set when the node uses expert e of layer l.
        With scenarios, layer l of scenario m takes the place of layer m * L + l. Built once, at
        construction. All arrays are read-only.

    Raises
    ------
    InvalidInputError
        For ids out of range, shapes that disagree, a dtype that is not integer, or more experts or
        nodes than are taken (:mod:`specfit_opt.limits`: 65,536 experts per layer, 4,194,304 over
        all layers, 33,554,432 words of packed rows).

    Notes
    -----
    Packing takes O(n L k) time and n * L * ceil(E / 64) * 8 bytes, M times that with scenarios.
    """

    experts: NDArray[np.integer]
    n_experts: int
    resident: NDArray[np.bool_]
    scenario_weights: NDArray[np.float64] | None = field(init=False)
    rows: NDArray[np.uint64] = field(init=False, repr=False)

    def __init__(
        self, experts: ArrayLike, n_experts: int, resident: ArrayLike | None = None
    ) -> None:
        ids = _checked_ids(experts, ("nodes", "layers", "slots"))
        self._fill(ids, n_experts, resident)

    @classmethod
    def from_scenarios(
        cls,
        experts: ArrayLike,
        n_experts: int,
        resident: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> ExpertRouting:
        """Build an uncertain routing: one of M scenarios will turn out to be true.

        Every method then chooses by the *expected* transfer time, and figures of experts in a
        :class:`Solution` are expectations. The cost model stays that of the L layers; nothing has
        to be scaled.

        Parameters
        ----------
        experts : array_like of int, shape (M, n, L, k)
            Expert ids of every node in each scenario; -1 pads.
        n_experts : int
            Number of experts per layer, E.
        resident : array_like of bool, shape (L, E), optional
            Experts that are in fast memory already, whichever scenario is true. Default: none.
        weights : array_like of float, shape (M,), optional
            How probable each scenario is: positive, taken relative to their sum. Default: equal.

        Returns
        -------
        ExpertRouting

        Raises
        ------
        InvalidInputError
            As for the class; also if there is no scenario, or a weight is not positive and finite.

        Notes
        -----
        The expected cost of a union is again a weighted union (section "Uncertain routing" of the
        theory page): each expert of each scenario is an element of its own, at the price of the
        expert times the weight of the scenario. So rows are M times as long. With equal weights
        and one ``expert_time`` for all, costs are still plain bit counts.

        Examples
        --------
        >>> from specfit_opt import CostModel, DraftTree, ExpertRouting, evaluate
        >>> tree = DraftTree([-1, 0], [1.0, 0.8])
        >>> routing = ExpertRouting.from_scenarios([[[[0]], [[0]]], [[[0]], [[1]]]], n_experts=2)
        >>> evaluate(tree, routing, CostModel(1.0, 0.0, 0.2), [0, 1]).experts_loaded.tolist()
        [1.5]
        """
        ids = _checked_ids(experts, ("scenarios", "nodes", "layers", "slots"))
        routing = object.__new__(cls)
        routing._fill(ids, n_experts, resident, _checked_weights(weights, len(ids)))
        return routing

    def _fill(
        self,
        ids: NDArray[np.integer],
        n_experts: int,
        resident: ArrayLike | None,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        n_experts = Whole(1)(n_experts, "n_experts")
        n_nodes, n_layers, n_slots = ids.shape[-3:]
        if n_layers == 0:
            raise InvalidInputError("experts has no layers; a mixture-of-experts model has one")
        check_size(n_nodes, n_layers, n_experts, 1 if weights is None else len(weights))
        flat = ids
        if weights is not None:
            # Rows are by node, so the ids are too; what is kept is a view in the order as given.
            ids = frozen(np.ascontiguousarray(np.moveaxis(ids, 0, 1)))
            flat = ids.reshape(len(ids), len(weights) * n_layers, n_slots)
            ids = np.moveaxis(ids, 1, 0)
        rows, bad = kernel.pack(flat, n_experts)
        if bad >= 0:
            outside = (ids < -1) | (ids >= n_experts)
            at = tuple(int(i) for i in np.argwhere(outside)[0])
            raise InvalidInputError(
                f"experts[{', '.join(map(str, at))}] = {ids[at]} is no expert of {n_experts} (ids "
                f"are 0 to {n_experts - 1}, -1 pads)"
            )
        put = object.__setattr__
        put(self, "experts", frozen(ids))
        put(self, "n_experts", n_experts)
        put(self, "resident", checked_resident(resident, n_layers, n_experts))
        put(self, "scenario_weights", weights)
        put(self, "rows", frozen(rows))

    @property
    def n_nodes(self) -> int:
        """Number of nodes, n."""
        return len(self.rows)

    @property
    def n_layers(self) -> int:
        """Number of MoE layers, L."""
        return len(self.resident)

    @property
    def n_scenarios(self) -> int:
        """Number of scenarios, M; 1 where the routing is certain."""
        return 1 if self.scenario_weights is None else len(self.scenario_weights)

    def union(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the experts that a set of nodes uses.

        Parameters
        ----------
        mask : ndarray of bool, shape (n,)

        Returns
        -------
        ndarray of bool, shape (L, E)
            (M, L, E) for a routing made of scenarios.
        """
        words = np.bitwise_or.reduce(self.rows[mask], axis=0).astype("<u8", copy=False)
        octets = words.view(np.uint8).reshape(self.n_scenarios * self.n_layers, -1)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=self.n_experts)
        used = bits.view(np.bool_)
        if self.scenario_weights is None:
            return used
        return used.reshape(self.n_scenarios, self.n_layers, self.n_experts)

    def with_resident(self, resident: ArrayLike | None) -> ExpertRouting:
        """Return the same routing beside another cache content, without packing again.

        Parameters
        ----------
        resident : array_like of bool, shape (L, E), or None
            Experts that are in fast memory; None for none.

        Returns
        -------
        ExpertRouting
            Shares ``experts`` and ``rows`` with this one.

        Raises
        ------
        InvalidInputError
            If ``resident`` has another shape or dtype.
        """
        other = object.__new__(ExpertRouting)
        for name in ("experts", "n_experts", "scenario_weights", "rows"):
            object.__setattr__(other, name, getattr(self, name))
        checked = checked_resident(resident, self.n_layers, self.n_experts)
        object.__setattr__(other, "resident", checked)
        return other

    __setstate__ = refreeze

    def __repr__(self) -> str:
        uncertain = "" if self.scenario_weights is None else f"n_scenarios={self.n_scenarios}, "
        return (
            f"ExpertRouting({uncertain}n_nodes={self.n_nodes}, n_layers={self.n_layers}, "
            f"n_experts={self.n_experts}, resident={float(self.resident.mean()):.1%})"
        )


def _checked_ids(experts: ArrayLike, axes: tuple[str, ...]) -> NDArray[np.integer]:
    """Return a contiguous read-only array with these axes, of one of the three id types."""
    ids = as_array(experts, "experts")
    if ids.dtype.kind not in "iu":
        raise InvalidInputError(f"experts must hold integers, got dtype {ids.dtype}")
    if ids.ndim != len(axes):
        raise InvalidInputError(
            f"experts must have shape ({', '.join(axes)}), got {tuple(ids.shape)}"
        )
    ids = kernel_ids(ids)
    # The packed rows are what is solved, so a private copy keeps the two from drifting apart.
    return frozen(np.array(ids, order="C") if ids.flags.writeable else np.ascontiguousarray(ids))


def kernel_ids(ids: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return integers of any type as one of the three that the kernel takes."""
    if ids.dtype in (np.int16, np.int32, np.int64):
        return ids
    if ids.dtype.kind == "u" and ids.dtype.itemsize == 8:
        ids = np.minimum(ids, np.iinfo(np.int64).max)  # so that 2**64 - 1 is no padding
    return ids.astype(np.int64)


def _checked_weights(weights: ArrayLike | None, n_scenarios: int) -> NDArray[np.float64]:
    """Return the scenarios' weights with a sum of 1."""
    if n_scenarios == 0:
        raise InvalidInputError("experts has no scenarios; give at least one")
    if weights is None:
        return frozen(np.full(n_scenarios, 1.0 / n_scenarios))
    given = float_array(weights, "weights")
    if given.shape != (n_scenarios,):
        raise InvalidInputError(
            f"weights has shape {given.shape} but experts holds {n_scenarios} scenarios; give one "
            "weight per scenario"
        )
    if (bad := first(~((given > 0.0) & (given < np.inf)))) is not None:
        raise InvalidInputError(
            f"weights[{bad}] = {given[bad]}; weights must be positive and finite (leave out "
            "scenarios that cannot happen)"
        )
    relative = given / given.max()  # their sum cannot overflow
    return frozen(relative / relative.sum())


def checked_resident(
    resident: ArrayLike | None, n_layers: int, n_experts: int
) -> NDArray[np.bool_]:
    """Return ``resident`` as a read-only bool array of shape (L, E); None means none."""
    if resident is None:
        return frozen(np.zeros((n_layers, n_experts), dtype=np.bool_))
    mask = as_array(resident, "resident")
    if mask.dtype != np.bool_:
        raise InvalidInputError(f"resident must hold bool, got dtype {mask.dtype}")
    if mask.shape != (n_layers, n_experts):
        raise InvalidInputError(
            f"resident has shape {tuple(mask.shape)}; experts and n_experts call for "
            f"(layers, experts) = ({n_layers}, {n_experts})"
        )
    if mask.flags.writeable or not mask.flags.c_contiguous:
        mask = frozen(np.array(mask, order="C"))
    return mask
