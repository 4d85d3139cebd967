"""What a kind of expert store is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .expert_store import ExpertStore


@dataclass(frozen=True)
class StoreKind:
    """A kind of expert store as the registry holds it.

    Attributes
    ----------
    name : str
        What ``open_store`` and ``store=`` take.
    open : callable
        ``open(index, *, device, io_threads) -> ExpertStore``; with ``takes_direct_io`` it takes
        ``direct_io``, too.
    summary : str
        One line for tables.
    takes_direct_io : bool
        Whether fetches read files, so that ``direct_io`` has a meaning.
    needs_cuda : bool
        Whether slots must lie on a CUDA device.
    """

    name: str
    open: Callable[..., ExpertStore]
    summary: str
    takes_direct_io: bool = False
    needs_cuda: bool = False
