"""Where the experts are kept: one file per kind of store, and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import InvalidInputError
from . import disk, pinned, ram
from ._check import checked_device
from ._pool import THREADS
from .disk import DiskStore
from .emulated import EmulatedLink, checked_bandwidth
from .pinned import PinnedStore
from .protocol import ExpertStore, StoreCounters, Ticket
from .ram import RamStore
from .registry import StoreKind, StoreOptions

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex

#: Every kind of store by name.
STORES: dict[str, StoreKind] = {module.STORE.name: module.STORE for module in (disk, ram, pinned)}


def get_store(name: str) -> StoreKind:
    """Return the kind of store registered as ``name``.

    Raises
    ------
    InvalidInputError
        If there is none; the message lists the names.
    """
    try:
        return STORES[name]
    except (KeyError, TypeError):
        raise InvalidInputError(
            f"store {name!r} is unknown; the stores are {', '.join(STORES)}"
        ) from None


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
    kind = get_store(name)
    if link_bandwidth is not None:
        link_bandwidth = checked_bandwidth(link_bandwidth)
    target = checked_device(device)
    if not isinstance(direct_io, bool):
        raise InvalidInputError(f"direct_io must be true or false, got {direct_io!r}")
    if direct_io and not kind.takes_direct_io:
        takers = ", ".join(k.name for k in STORES.values() if k.takes_direct_io)
        raise InvalidInputError(
            f'direct_io has no meaning for store "{name}", which reads no files while decoding; '
            f"it is for {takers}"
        )
    options = StoreOptions(direct_io, THREADS(io_threads, "io_threads"))
    store = kind.open(index, target, options)
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
    "StoreOptions",
    "Ticket",
    "get_store",
    "open_store",
]
