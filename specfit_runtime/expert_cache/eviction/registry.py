"""What an eviction policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class EvictionPolicy(ABC):
    """Remembers how the experts of every layer were used, and says which to give up first.

    The cache decides what may be evicted; the policy only orders. It must not rely on hearing of
    every step: after an interrupt, an eviction or an admission may go untold.
    """

    @abstractmethod
    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """Note that one pass uses these experts, distinct, resident or not."""

    @abstractmethod
    def admit(self, layer: int, expert: int) -> None:
        """Note that ``expert`` gets a slot, for a pass that uses it or ahead of one."""

    @abstractmethod
    def victims(self, layer: int, candidates: Sequence[int], count: int) -> list[int]:
        """Return ``count`` of the candidates, the first to go first, all if there are fewer."""


@dataclass(frozen=True)
class EvictionKind:
    """An eviction policy as the registry holds it.

    Attributes
    ----------
    name : str
        What ``cache_policy`` takes.
    make : callable
        ``make(n_layers, n_experts) -> EvictionPolicy``, without memory.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    """

    name: str
    make: Callable[[int, int], EvictionPolicy]
    summary: str
    source: str
