"""Products of rows, grouped by expert, with the matrices of the experts' slots."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .rows import on_device
from .weights import Weight


class Products:
    """Multiplies groups of rows with the matrices of their slots.

    Parameters
    ----------
    slots, counts : list of int
        The slot of each group and its number of rows; ascending slots where
        :func:`all_at_once` gives a function.
    n_slots : int
        Of the slab.
    device : torch.device
    dtype : torch.dtype
        Of the matrices.

    Notes
    -----
    On a CPU grouped_mm is one mm after the other. It also visits the slots that have no rows, so
    that calling mm is faster; and it knows neither float64 nor, before torch 2.9, CPUs.
    """

    def __init__(
        self,
        slots: list[int],
        counts: list[int],
        n_slots: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._slots, self._counts, self._device = slots, counts, device
        self._grouped_mm = all_at_once(device, dtype)
        if self._grouped_mm is not None:
            per_slot = np.zeros(n_slots, dtype=np.int32)
            per_slot[slots] = counts
            self._offsets = on_device(np.cumsum(per_slot, dtype=np.int32), device)

    def of(self, x: Tensor, weight: Weight) -> Tensor:
        """Return each row of ``x`` times the matrix of its slot, plus the bias."""
        if x.dtype != weight.stacked.dtype:
            x = x.to(weight.stacked.dtype)
        if self._grouped_mm is not None:
            y = self._grouped_mm(x, weight.stacked, offs=self._offsets)
        elif torch.is_autocast_enabled(self._device.type):
            # Autocast knows mm, but not the grouped_mm of stock.
            with torch.autocast(self._device.type, enabled=False):
                y = self._one_by_one(x, weight)
        else:
            y = self._one_by_one(x, weight)
        if weight.bias is not None:
            slot_of_row = on_device(np.repeat(self._slots, self._counts), self._device)
            y.add_(weight.bias.index_select(0, slot_of_row))
        return y

    def _one_by_one(self, x: Tensor, weight: Weight) -> Tensor:
        groups = torch.split_with_sizes(x, self._counts)
        products = [
            torch.mm(group, weight.by_slot[slot])
            for group, slot in zip(groups, self._slots, strict=True)
        ]
        return products[0] if len(products) == 1 else torch.cat(products)


@cache
def all_at_once(device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """Return what multiplies all groups at once; None: they are multiplied one by one.

    Only where torch has a kernel for it: bfloat16 from compute capability 9.0 on. Elsewhere its
    grouped_mm is one mm after the other as well, also for slots that have no rows, and copies the
    offsets to the host first, so that the host waits for the device, and with it for weights on
    their way, twice per batch. Stock's own fallback for yet older GPUs does the same.
    """
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    capability = torch.cuda.get_device_capability(device)
    public: Callable[..., Tensor] | None = getattr(torch.nn.functional, "grouped_mm", None)
    if public is not None:
        return public if capability >= (9, 0) else None
    # The one before it was for this capability alone.
    return getattr(torch, "_grouped_mm", None) if capability[0] == 9 else None
