"""What a profile and a model at hand must have in common for one to speak of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..offload import Offload


@dataclass(frozen=True)
class OffloadFacts:
    """What makes figures measured on one offloaded model hold for another.

    Attributes
    ----------
    type : str
        ``model_type`` of the configuration.
    n_layers, n_experts, top_k : int
    dtype, device, store : str
        As :class:`RuntimeProfile` has them.
    link_bandwidth : float or None
        Bytes per second of an emulated link.
    moved_bytes : tuple of int, shape (L,)
    """

    type: str
    n_layers: int
    n_experts: int
    top_k: int
    dtype: str
    device: str
    store: str
    link_bandwidth: float | None
    moved_bytes: tuple[int, ...]


def facts_of(offload: Offload) -> OffloadFacts:
    """Return the facts of the model at hand."""
    store = offload.store
    bandwidth = getattr(store, "bandwidth", None)
    return OffloadFacts(
        type=offload.family.model_type,
        n_layers=int(offload.n_layers),
        n_experts=int(offload.n_experts),
        top_k=int(offload.top_k),
        dtype=str(offload.dtype).removeprefix("torch."),
        device=str(getattr(offload.device, "type", offload.device)),
        store=store.name,
        link_bandwidth=None if bandwidth is None else float(bandwidth),
        moved_bytes=tuple(int(b) for b in store.moved_bytes),
    )
