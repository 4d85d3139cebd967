"""Times fetches from the expert store while it is kept busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from .clock import now

if TYPE_CHECKING:
    from ..offload import Offload

#: Bytes that the experts of one batch may take, unless two of them take more.
_MOST_BYTES = 1 << 28


class FetchTimer:
    """Times batches of fetches, each into memory of its own.

    Transfers queue on the store's link, so a batch's duration over its size is what an expert costs
    when several are missing, and little more than what one alone does.

    Parameters
    ----------
    offload : Offload
    rng : numpy.random.Generator
        Draws the experts: others each time, because a file just read comes from memory.

    Attributes
    ----------
    batch : int
        Experts that are asked for at once.
    seconds : list of list of float
        By layer: seconds per expert.
    """

    def __init__(self, offload: Offload, rng: np.random.Generator) -> None:
        self._offload = offload
        self._rng = rng
        index = offload.index
        widest = max(index.layouts, key=lambda layout: layout.n_elements)
        room = _MOST_BYTES // (widest.n_elements * widest.dtype.itemsize)
        self.batch = max(min(2 * index.top_k, room, index.n_experts), min(2, index.n_experts))
        with torch.inference_mode(False):
            self._memory = torch.empty(
                (self.batch, widest.n_elements), dtype=widest.dtype, device=offload.device
            )
        self.seconds: list[list[float]] = [[] for _ in range(index.n_layers)]

    def warm_up(self) -> None:
        """Fetch a batch that is not counted."""
        self._fetch(0)

    def time(self) -> None:
        """Time a batch of every layer."""
        for layer, seconds in enumerate(self.seconds):
            seconds.append(self._fetch(layer))

    def _fetch(self, layer: int) -> float:
        offload = self._offload
        width = offload.index.layouts[layer].n_elements
        experts = self._rng.choice(offload.n_experts, self.batch, replace=False).tolist()
        begin = now(offload.device)
        tickets = [
            offload.store.fetch(layer, expert, row[:width])
            for expert, row in zip(experts, self._memory, strict=True)
        ]
        for ticket in tickets:
            ticket.wait()
        return (now(offload.device) - begin) / self.batch
