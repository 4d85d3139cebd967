"""What the stores on this machine share: checks, counters, threads and a stream for copies."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from specfit_opt.arrays import frozen

from ..errors import InvalidInputError
from ._cuda import open_stream
from ._meter import Meter
from ._pool import FetchPool
from .expert_store import ExpertStore, StoreCounters, Ticket

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


class LocalStore(ExpertStore):
    """A store that brings experts itself, from files or from host memory.

    Parameters
    ----------
    index : ExpertIndex
    device : torch.device
        Where the slots lie; with CUDA, copies go through a stream of the store's own.
    threads : int
        That fetch; 0: fetches only enqueue copies, whose seconds the device measures.
    """

    def __init__(self, index: ExpertIndex, device: torch.device, threads: int) -> None:
        self.index, self.device = index, device
        self.moved_bytes = frozen(np.array(index.record_bytes, dtype=np.int64))
        self._meter = Meter()
        self._stream = open_stream(device, None if threads else self._meter)
        self._pool = FetchPool(threads, self.name, self._meter) if threads else None

    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        """Start to bring an expert into ``out``; see :meth:`ExpertStore.fetch`."""
        check_fetch(self.index, self.device, layer, expert, out, after)
        return self._start(layer, expert, out, after, early)

    def counters(self) -> StoreCounters:
        """Return what was moved so far."""
        if self._stream is not None:
            self._stream.note_times()
        return self._meter.read()

    def drain(self) -> None:
        """Wait for every fetch that began; see :meth:`ExpertStore.drain`."""
        if self._pool is not None:
            self._pool.drain()
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Finish what is under way, then release files and memory; may be called again."""
        if self._pool is not None:
            self._pool.close()
        if self._stream is not None:
            # Neither the records nor the slots may go while the device still copies.
            self._stream.synchronize()
        self._release()

    @abstractmethod
    def _start(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None,
        early: bool,
    ) -> Ticket:
        """Start a fetch whose arguments are as they must be."""

    @abstractmethod
    def _release(self) -> None:
        """Give back files and memory, of which nothing is copied any more; may be called again."""


def check_fetch(
    index: ExpertIndex,
    device: torch.device,
    layer: int,
    expert: int,
    out: torch.Tensor,
    after: torch.cuda.Event | None,
) -> None:
    """Check the arguments of a fetch.

    Raises
    ------
    InvalidInputError
        If an argument is not as :meth:`ExpertStore.fetch` says.
    """
    if not 0 <= layer < index.n_layers:
        raise InvalidInputError(
            f"layer {layer} is not there: the model has MoE layers 0 to {index.n_layers - 1}"
        )
    if not 0 <= expert < index.n_experts:
        raise InvalidInputError(
            f"expert {expert} is not there: a layer has experts 0 to {index.n_experts - 1}"
        )
    layout = index.layouts[layer]
    if (
        out.shape != (layout.n_elements,)
        or out.dtype != layout.dtype
        or out.device != device
        or not out.is_contiguous()
    ):
        raise InvalidInputError(
            f"a slot for layer {layer} must be contiguous, of shape ({layout.n_elements},), "
            f"{layout.dtype} and on {device}; got shape {tuple(out.shape)}, {out.dtype} on "
            f"{out.device}"
        )
    if after is not None and device.type != "cuda":
        raise InvalidInputError(f"after must be None on {device}: only CUDA copies wait for events")
