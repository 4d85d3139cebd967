"""What an expert store is: where the experts' weights are kept and fetched from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..closing import Closing

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


@dataclass(frozen=True)
class StoreCounters:
    """What a store has moved since it was opened; subtract two to get what happened in between.

    Attributes
    ----------
    fetches : int
        Fetches that ended well.
    failures : int
        Fetches that ended in an error.
    bytes : int
        Bytes over the store's link, counted where they move: what the reads of the file returned,
        or what was copied. Those of failed fetches are included.
    seconds : float
        Summed duration of the fetches' transfers, from the moment each got its turn. Transfers that
        overlap count each for itself.
    """

    fetches: int = 0
    failures: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __sub__(self, earlier: StoreCounters) -> StoreCounters:
        return StoreCounters(
            self.fetches - earlier.fetches,
            self.failures - earlier.failures,
            self.bytes - earlier.bytes,
            self.seconds - earlier.seconds,
        )


class Ticket(ABC):
    """A fetch under way. Dropping a ticket does not stop the fetch."""

    @abstractmethod
    def done(self) -> bool:
        """Return whether :meth:`wait` would return or raise at once. Never blocks."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the weights may be used.

        On CUDA the host waits only until the copy is enqueued, and the current stream is made to
        wait for the copy itself. May be called again, also by other threads.

        Raises
        ------
        StoreError
            If the fetch failed; what lies in the slot is then undefined.
        """

    def promote(self) -> None:  # noqa: B027
        """Let the fetch wait for no other any more, if it was asked for early and waits."""

    def cancel(self) -> bool:
        """Give up an early fetch that has not begun.

        Returns
        -------
        bool
            Whether it had not: nothing was moved, the slot is as it was, and :meth:`wait` raises.
        """
        return False


class ExpertStore(Closing):
    """Keeps every expert's weights and brings one at a time into a slot.

    Attributes
    ----------
    name : str
        As in the registry; an emulated link's begins with ``emulated-``.
    index : ExpertIndex
    device : torch.device
        Where the slots lie.
    moved_bytes : ndarray of int64, shape (L,)
        Bytes that one fetch moves over the store's link, per MoE layer; read-only.
    """

    name: str
    index: ExpertIndex
    device: torch.device
    moved_bytes: NDArray[np.int64]

    @property
    def description(self) -> str:
        """One line for reports."""
        return self.name

    @abstractmethod
    def fetch(
        self,
        layer: int,
        expert: int,
        out: torch.Tensor,
        after: torch.cuda.Event | None = None,
        *,
        early: bool = False,
    ) -> Ticket:
        """Start to bring an expert's record into ``out``; several may be under way at a time.

        Parameters
        ----------
        layer, expert : int
            ``0 <= layer < L`` counts the MoE layers, ``0 <= expert < E``.
        out : Tensor, shape (n_elements,)
            The slot, contiguous, in the run dtype and on the store's device. Its contents are
            undefined until the ticket is done.
        after : torch.cuda.Event, optional
            What the copy waits for before it overwrites the slot. None on a CPU.
        early : bool
            Nobody needs the expert yet: begin when nothing else is under way, one early fetch at a
            time, or when the ticket is promoted or waited for.

        Raises
        ------
        InvalidInputError
            If an argument is not as it must be.
        StoreError
            If the store is closed. What goes wrong later is raised by the ticket.
        """

    @abstractmethod
    def counters(self) -> StoreCounters:
        """Return what was moved so far; safe to call from any thread."""

    @abstractmethod
    def drain(self) -> None:
        """Return when no fetch that began before writes to its slot any more.

        For whoever was interrupted within :meth:`fetch`, and so does not know whether a fetch began
        whose ticket was lost. What went wrong is still raised by the tickets.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop the threads and release files and memory; may be called again.

        Fetches that have not begun fail with a StoreError, those under way are finished first.
        """
