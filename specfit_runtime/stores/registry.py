"""What a kind of expert store is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .protocol import ExpertStore

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


@dataclass(frozen=True)
class StoreOptions:
    """What a store may be told.

    Attributes
    ----------
    direct_io : bool
        Read files past the operating system's page cache.
    io_threads : int
        Threads that read or copy.
    """

    direct_io: bool = False
    io_threads: int = 4


@dataclass(frozen=True)
class StoreKind:
    """A kind of expert store as the registry holds it.

    Attributes
    ----------
    name : str
        What ``open_store`` and ``store=`` take.
    open : callable
        ``open(index, device, options) -> ExpertStore``.
    summary : str
        One line for tables.
    takes_direct_io : bool
        Whether fetches read files, so that ``direct_io`` has a meaning.
    needs_cuda : bool
        Whether slots must lie on a CUDA device.
    """

    name: str
    open: Callable[[ExpertIndex, torch.device, StoreOptions], ExpertStore]
    summary: str
    takes_direct_io: bool = False
    needs_cuda: bool = False
