"""Where the experts are kept: one file per kind of store, and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specfit_opt.checks import Flag
from specfit_opt.registry import Registry

from ..errors import InvalidInputError
from . import disk, pinned, ram
from ._pool import THREADS
from .device import checked_device
from .disk import DiskStore
from .emulated import BANDWIDTH, EmulatedLink
from .expert_store import ExpertStore, StoreCounters, Ticket
from .pinned import PinnedStore
from .ram import RamStore
from .store_kind import StoreKind

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex

#: Every kind of store by name.
STORES = Registry("store", (module.STORE for module in (disk, ram, pinned)))


def open_store(
    name: str,
    index: ExpertIndex,
    *,
    device: torch.device | str = "cpu",
    direct_io: bool = False,
    io_threads: int = 4,
    link_bandwidth: float | None = None,
) -> ExpertStore:
    """Open the experts of a checkpoint.

    Parameters
    ----------
    name : str
        A name in ``STORES``.
    index : ExpertIndex
    device : torch.device or str
        Where the slots lie.
    direct_io : bool
        Read files past the operating system's page cache; only for stores that read files at every
        fetch.
    io_threads : int
        Threads that read or copy, >= 1.
    link_bandwidth : float, optional
        Bytes per second of an emulated link in front of the store; see :class:`EmulatedLink`.

    Raises
    ------
    InvalidInputError
        If an argument is not as it must be.
    StoreError
        If the files cannot be opened or read, or the experts do not fit into memory.
    """
    kind = STORES.find(name)
    if link_bandwidth is not None:
        link_bandwidth = BANDWIDTH(link_bandwidth, "link_bandwidth")
    target = checked_device(device)
    if Flag()(direct_io, "direct_io") and not kind.takes_direct_io:
        takers = ", ".join(k.name for k in STORES.values() if k.takes_direct_io)
        raise InvalidInputError(
            f'direct_io has no meaning for store "{name}", which reads no files while decoding; '
            f"it is for {takers}"
        )
    reading = {"direct_io": direct_io} if kind.takes_direct_io else {}
    store = kind.open(index, device=target, io_threads=THREADS(io_threads, "io_threads"), **reading)
    return store if link_bandwidth is None else EmulatedLink(store, link_bandwidth)


__all__ = [
    "STORES",
    "DiskStore",
    "EmulatedLink",
    "ExpertStore",
    "PinnedStore",
    "RamStore",
    "StoreCounters",
    "StoreKind",
    "Ticket",
    "open_store",
]
