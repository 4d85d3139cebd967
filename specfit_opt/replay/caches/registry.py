"""What a simulated expert cache is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Cache(Protocol):
    """The experts in fast memory, pass by pass, as the cache policy leaves them."""

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): what is in fast memory now."""

    def use(self, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Run one pass over the experts ``used``, shape (L, E); return those that were missing."""


@dataclass(frozen=True)
class CacheKind:
    """A cache policy as the registry holds it.

    Attributes
    ----------
    name : str
    make : callable
        ``make(n_layers, n_experts, slots) -> Cache``, as it stands at the start of a prompt.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    """

    name: str
    make: Callable[[int, int, int], Cache]
    summary: str
    source: str
