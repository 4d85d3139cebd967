"""Which expert each slot of one layer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..stores.expert_store import Ticket


class Entry:
    """An expert in a slot, or on its way into one.

    Attributes
    ----------
    slot : int
    ticket : Ticket or None
        Of the fetch under way; None once the weights are known to have arrived.
    """

    __slots__ = ("slot", "ticket")

    def __init__(self, slot: int, ticket: Ticket) -> None:
        self.slot = slot
        self.ticket: Ticket | None = ticket

    def arrived(self) -> bool:
        """Wait until nothing writes to the slot any more; return whether the expert is in it."""
        if self.ticket is None:
            return True
        try:
            self.ticket.wait()
        except Exception:
            return False
        self.ticket = None
        return True


class LayerSlots:
    """The slab of a layer and who is in it.

    ``entries`` is the one truth; ``free`` and ``resident`` follow from it, and :meth:`restore`
    derives them anew if a change was interrupted half-way.

    Parameters
    ----------
    slab : Tensor, shape (S, n_elements)
    resident : ndarray of bool, shape (E,)
        Kept up to date in place.
    event : torch.cuda.Event, optional
        After which the new slab may be written to.
    """

    def __init__(
        self, slab: torch.Tensor, resident: NDArray[np.bool_], event: torch.cuda.Event | None
    ) -> None:
        self.slab = slab
        self.rows = slab.unbind(0)
        self.resident = resident
        self.entries: dict[int, Entry] = {}
        self.free: list[int] = []
        #: Per slot: after which event the compute that read it is over. None on a CPU.
        self.read: list[torch.cuda.Event | None] = [event] * len(slab)
        self.restore()

    @property
    def n_slots(self) -> int:
        """Slots of the layer."""
        return len(self.rows)

    def hold(self, expert: int, entry: Entry) -> None:
        """Enter an expert whose slot was taken from ``free``."""
        self.entries[expert] = entry
        self.resident[expert] = True

    def drop(self, expert: int) -> None:
        """Give an expert's slot back."""
        entry = self.entries.pop(expert)
        self.resident[expert] = False
        self.free.append(entry.slot)

    def restore(self) -> None:
        """Derive everything else from ``entries``."""
        taken = {entry.slot for entry in self.entries.values()}
        self.free = [slot for slot in reversed(range(self.n_slots)) if slot not in taken]
        self.resident[:] = False
        self.resident[list(self.entries)] = True
