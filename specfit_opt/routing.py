"""The experts that every draft token activates, packed once into bitsets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernel
from ._validate import frozen, refreeze
from .errors import InvalidInputError


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
    n_experts : int
    resident : ndarray of bool, shape (L, E)
    rows : ndarray of uint64, shape (n, L * ceil(E / 64))
        Bit e % 64 of word l * ceil(E / 64) + e // 64 is set when the node uses expert e of layer l.
        Built once, at construction. All arrays are read-only.

    Raises
    ------
    InvalidInputError
        For ids out of range, shapes that disagree or a dtype that is not integer.

    Notes
    -----
    Packing takes O(n L k) time and n * L * ceil(E / 64) * 8 bytes.
    """

    experts: NDArray[np.integer]
    n_experts: int
    resident: NDArray[np.bool_]
    rows: NDArray[np.uint64] = field(init=False, repr=False)

    def __init__(
        self, experts: ArrayLike, n_experts: int, resident: ArrayLike | None = None
    ) -> None:
        try:
            ids = np.asarray(experts)
        except ValueError as error:
            raise InvalidInputError(f"experts is not a rectangular array: {error}") from None
        if ids.dtype.kind not in "iu":
            raise InvalidInputError(f"experts must hold integers, got dtype {ids.dtype}")
        if ids.ndim != 3:
            raise InvalidInputError(
                f"experts must have shape (nodes, layers, slots), got {tuple(ids.shape)}"
            )
        if not isinstance(n_experts, (int, np.integer)) or n_experts < 1:
            raise InvalidInputError(f"n_experts must be a positive integer, got {n_experts!r}")
        if ids.shape[1] == 0:
            raise InvalidInputError("experts has no layers; a mixture-of-experts model has one")
        if ids.dtype not in (np.int16, np.int32, np.int64):
            if ids.dtype.kind == "u" and ids.dtype.itemsize == 8:
                ids = np.minimum(ids, np.iinfo(np.int64).max)  # so that 2**64 - 1 is no padding
            ids = ids.astype(np.int64)
        # The packed rows are what is solved, so a private copy keeps the two from drifting apart.
        ids = np.array(ids, order="C") if ids.flags.writeable else np.ascontiguousarray(ids)
        n_experts = int(n_experts)
        rows, bad = kernel.pack(ids, n_experts)
        if bad >= 0:
            v, layer, slot = (int(i) for i in np.unravel_index(bad, ids.shape))
            raise InvalidInputError(
                f"experts[{v}, {layer}, {slot}] = {ids[v, layer, slot]} is no expert of "
                f"{n_experts} (ids are 0 to {n_experts - 1}, -1 pads)"
            )
        object.__setattr__(self, "experts", frozen(ids))
        object.__setattr__(self, "n_experts", n_experts)
        object.__setattr__(self, "resident", checked_resident(resident, ids.shape[1], n_experts))
        object.__setattr__(self, "rows", frozen(rows))

    @property
    def n_nodes(self) -> int:
        """Number of nodes, n."""
        return len(self.experts)

    @property
    def n_layers(self) -> int:
        """Number of MoE layers, L."""
        return len(self.resident)

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
        for name in ("experts", "n_experts", "rows"):
            object.__setattr__(other, name, getattr(self, name))
        checked = checked_resident(resident, self.n_layers, self.n_experts)
        object.__setattr__(other, "resident", checked)
        return other

    __setstate__ = refreeze

    def __repr__(self) -> str:
        return (
            f"ExpertRouting(n_nodes={self.n_nodes}, n_layers={self.n_layers}, "
            f"n_experts={self.n_experts}, resident={float(self.resident.mean()):.1%})"
        )


def checked_resident(
    resident: ArrayLike | None, n_layers: int, n_experts: int
) -> NDArray[np.bool_]:
    """Return ``resident`` as a read-only bool array of shape (L, E); None means none."""
    if resident is None:
        return frozen(np.zeros((n_layers, n_experts), dtype=np.bool_))
    mask = np.asarray(resident)
    if mask.dtype != np.bool_:
        raise InvalidInputError(f"resident must hold bool, got dtype {mask.dtype}")
    if mask.shape != (n_layers, n_experts):
        raise InvalidInputError(
            f"resident has shape {tuple(mask.shape)}; experts and n_experts call for "
            f"(layers, experts) = ({n_layers}, {n_experts})"
        )
    return frozen(np.array(mask, order="C")) if mask.flags.writeable else mask
