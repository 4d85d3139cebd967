"""The scratch slab: where experts pass through that the cache has no slot for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..stores.expert_store import Ticket


class Scratch:
    """One slab for all layers; a slot is free again as soon as its expert was computed with.

    Parameters
    ----------
    slab : Tensor, shape (n, n_elements)
        Wide enough for the largest record.
    widths : sequence of int, shape (L,)
        Elements of each layer's record.
    event : torch.cuda.Event, optional
        After which the new slab may be written to.
    """

    def __init__(
        self, slab: torch.Tensor, widths: list[int], event: torch.cuda.Event | None
    ) -> None:
        self.slab = slab
        by_width = {width: slab[:, :width] for width in set(widths)}
        #: Per layer, the part of the slab that its records fill.
        self.views = [by_width[width] for width in widths]
        self.n_slots = len(slab)
        self.free: list[int] = []
        self.tickets: dict[int, Ticket] = {}
        self.read: list[torch.cuda.Event | None] = [event] * len(slab)
        self.reset()

    def reset(self) -> None:
        """Free every slot; nothing may be on its way into one."""
        self.tickets.clear()
        self.free = list(reversed(range(self.n_slots)))


def default_scratch(n_experts: int, top_k: int) -> int:
    """Return the slots of a scratch slab that is neither large nor a bottleneck.

    Twice the experts of a token: while one half is computed with, the other fills. At least 2, at
    most all experts.
    """
    return min(n_experts, max(2, 2 * top_k))
