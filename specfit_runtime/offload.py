"""What belongs to a model whose experts stay where they are until a token needs them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, local
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import ExpertIndex
from .closing import Closing
from .errors import InvalidInputError
from .expert_cache import ExpertCache
from .families import ExpertFamily
from .guards import OfOneModel
from .routing_record import RoutingRecord
from .stores import EmulatedLink, ExpertStore

if TYPE_CHECKING:
    from .prefetch import Prefetcher

#: What a second generation on one model is told.
BUSY = (
    "the model is decoding for another call; wait for that one, or load the model a second time"
)


class _Pass(local):
    """What belongs to the forward pass that a thread runs, and to no other thread's."""

    def __init__(self) -> None:
        self.records: list[RoutingRecord] = []
        self.prefetcher: Prefetcher | None = None


class Offload(OfOneModel, Closing):
    """What belongs to an offloaded model beside its modules; see :func:`offload_of`.

    As a context manager it is closed at the end of the block.

    Parameters
    ----------
    family : ExpertFamily
    store : ExpertStore
        Where the experts are kept; closed together with this.
    cache : ExpertCache
        Which of them are in fast memory.

    Attributes
    ----------
    family, store, cache
        As above.
    index : ExpertIndex
        Where the experts lie in the checkpoint.
    n_layers, n_experts, top_k : int
        MoE layers, experts per layer, and experts per token and layer.
    device : torch.device
        Where the model runs.
    dtype : torch.dtype
        What experts are computed in.
    """

    def __init__(self, family: ExpertFamily, store: ExpertStore, cache: ExpertCache) -> None:
        self.family = family
        self.store = store
        self.cache = cache
        self.index: ExpertIndex = store.index
        self.n_layers = self.index.n_layers
        self.n_experts = self.index.n_experts
        self.top_k = self.index.top_k
        self.device = store.device
        self.dtype = self.index.layouts[0].dtype
        self._pass = _Pass()
        self._closed = False
        # A model that is dropped without close() leaves no threads and descriptors behind.
        self._finalizer = weakref.finalize(self, store.close)

    @property
    def lock(self) -> RLock:
        """Held while a layer's experts are computed."""
        return self.cache.lock

    @property
    def link_bandwidth(self) -> float | None:
        """Bytes per second of the emulated link before the store; None: none is emulated."""
        return self.store.bandwidth if isinstance(self.store, EmulatedLink) else None

    @contextmanager
    def recording(self) -> Iterator[RoutingRecord]:
        """Record which experts the forward passes inside the block are routed to.

        Those of the thread that records; what others run on the model meanwhile is not in it.

        Yields
        ------
        RoutingRecord
            Its ``experts()`` gives int32 of shape (n, L, k), one row per token in the order in
            which they were computed.
        """
        record = RoutingRecord(self.n_layers, self.top_k)
        records = self._pass.records
        records.append(record)
        try:
            yield record
        finally:
            records.remove(record)

    @contextmanager
    def prefetching(self, prefetcher: Prefetcher) -> Iterator[None]:
        """Let a prefetcher see this thread's forward passes inside the block, and fetch early.

        Yields
        ------
        None
        """
        self._pass.prefetcher = prefetcher
        try:
            yield
        finally:
            self._pass.prefetcher = None

    @property
    def prefetcher(self) -> Prefetcher | None:
        """What sees the forward pass that this thread runs; None if nothing does."""
        return self._pass.prefetcher

    def record_routing(self, layer: int, routing: NDArray[np.int32]) -> None:
        """Note the experts of a layer's forward pass, shape (T, k), before they are computed.

        Raises
        ------
        InvalidInputError
            If the offload is closed.
        """
        if self._closed:
            raise InvalidInputError(
                "the experts of this model were closed; load it again with load_offloaded"
            )
        for record in self._pass.records:
            record.note(layer, routing)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop the store's threads and release its files; the model cannot run any more.

        Waits for the layer that is being computed; may be called again.
        """
        with self.lock:
            self._closed = True
            self._finalizer()

    def __repr__(self) -> str:
        slots = sorted(set(self.cache.slots))
        shown = f"{slots[0]}" if len(slots) == 1 else f"{slots[0]} to {slots[-1]}"
        total = int(self.index.record_bytes.sum()) * self.n_experts
        state = ", closed" if self._closed else ""
        return (
            f"<Offload {self.family.name}: {self.n_layers} layers x {self.n_experts} "
            f"experts, top-{self.top_k}; {self.store.description}; {shown} slots per layer "
            f"({self.cache.policy}), {self.cache.n_bytes / 1e6:.1f} MB of the experts' "
            f"{total / 1e6:.1f} MB; {str(self.dtype).removeprefix('torch.')} on "
            f"{self.device}{state}>"
        )


def offload_of(model: Any) -> Offload:
    """Return what belongs to a model that :func:`load_offloaded` returned.

    Raises
    ------
    InvalidInputError
        If it is another model.
    """
    offload = getattr(model, "_specfit_offload", None)
    if not isinstance(offload, Offload):
        raise InvalidInputError(
            f"this {type(model).__name__} has no offloaded experts; load the model with "
            "specfit_runtime.load_offloaded"
        )
    return offload


def model_name(model: Any) -> str:
    """Return a hub model's id, or the name of the folder without what leads to it."""
    name = str(model.config.name_or_path or "")
    if os.path.isdir(name):
        name = os.path.basename(os.path.realpath(name))
    return name or str(model.config.model_type)
