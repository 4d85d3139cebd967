"""The rows of a layer's forward pass: each token with each of its experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError


class Rows:
    """Groups the rows of a pass by expert, in the order of stock.

    Parameters
    ----------
    routing : Tensor of int, shape (T, k)
        Experts of each token, T > 0, on the CPU. Row ``t * k + j`` is token t with its j-th expert.
    n_experts : int
    device : torch.device
        Where indices are needed.

    Attributes
    ----------
    experts, demand : list of int
        The experts that are used, ascending, and how many rows each has.
    n_rows, top_k : int

    Raises
    ------
    InvalidInputError
        If there is no such expert.
    """

    def __init__(self, routing: Tensor, n_experts: int, device: torch.device) -> None:
        flat = routing.reshape(-1)
        ids = flat.numpy()
        if ids.min() < 0 or ids.max() >= n_experts:
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise InvalidInputError(f"the router chose expert {bad} of {n_experts}")
        self.n_rows, self.top_k = len(ids), routing.shape[1]
        self._device = device
        # The sort of stock, which is not stable: where a row is among those of its expert can
        # matter to its last bit, in the product as well as in the gate.
        self._order = torch.sort(flat).indices.numpy()
        count = np.bincount(ids, minlength=n_experts)
        used = np.flatnonzero(count)
        self.experts: list[int] = used.tolist()
        self.demand: list[int] = count[used].tolist()
        end = np.cumsum(count)
        self._end: list[int] = end.tolist()
        self._start: list[int] = (end - count).tolist()

    def of(self, experts: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Return the rows of these experts, one expert after the other, and how many each has."""
        order, start, end = self._order, self._start, self._end
        if experts == self.experts:
            return on_device(order, self._device), self.demand
        rows = np.concatenate([order[start[e] : end[e]] for e in experts])
        return on_device(rows, self._device), [end[e] - start[e] for e in experts]

    def places(self, experts: Sequence[int]) -> Tensor:
        """Return where the rows of these experts are when all rows are sorted by expert."""
        start, end = self._start, self._end
        return on_device(
            np.concatenate([np.arange(start[e], end[e]) for e in experts]), self._device
        )


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor, which shares its memory on a CPU."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    # An ordinary copy waits for all that the device was given before, weights on their way among
    # it. torch does not use the page-locked memory again before the copy is over.
    return tensor.pin_memory().to(device, non_blocking=True)
