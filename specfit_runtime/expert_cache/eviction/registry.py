"""What an eviction policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class EvictionPolicy(ABC):
    """Remembers how the experts of every layer were used, and says which to give up first.

    The cache decides who may go: residents that are not in use, and experts that a pass is about to
    bring in, which then pass through without a slot. The policy only orders. It must not rely on
    hearing of every step: after an interrupt, an eviction or an admission may go untold.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._demand = np.zeros((n_layers, n_experts))

    def touch(
        self,
        layer: int,
        experts: Sequence[int],
        demand: Sequence[int],
        weight: Sequence[float] | None = None,
    ) -> None:
        """Note that one pass uses these experts, distinct, resident or not.

        Parameters
        ----------
        layer : int
        experts : sequence of int
        demand : sequence of int
            How many tokens of the pass use each.
        weight : sequence of float, optional
            Probability that a committed token uses each, for kinds that weigh; None: all are
            certain.
        """
        self._demand[layer, experts] = demand
        self._note(layer, experts)

    def committed(self, tokens: int) -> None:
        """Note how many tokens the last pass committed; one, if nothing is said."""
        return

    def victims(
        self,
        layer: int,
        candidates: Sequence[int],
        count: int,
        newcomers: Collection[int] = (),
    ) -> list[int]:
        """Return ``count`` of the candidates, the first to go first, all if there are fewer.

        Among equals the expert that fewer tokens asked for at its last use goes first, then the
        smaller id.

        Parameters
        ----------
        layer : int
        candidates : sequence of int
            Distinct.
        count : int
        newcomers : collection of int
            Those among them that have no slot.
        """
        ids = np.array(candidates, dtype=np.int64)
        keys = self._rank(layer, ids, np.isin(ids, list(newcomers)))
        order = np.lexsort((ids, self._demand[layer, ids], *reversed(keys)))[:count]
        first: list[int] = ids[order].tolist()
        return first

    @abstractmethod
    def admit(self, layer: int, expert: int) -> None:
        """Note that ``expert`` gets a slot, for a pass that uses it or ahead of one."""

    @abstractmethod
    def _note(self, layer: int, experts: Sequence[int]) -> None:
        """Note that one pass uses these experts."""

    @abstractmethod
    def _rank(
        self, layer: int, ids: NDArray[np.int64], new: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], ...]:
        """Return what orders these experts, the main key first; the smallest goes first."""


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
    weighs : bool
        Whether it makes use of weights.
    admission : bool
        Whether it keeps out what only unlikely tokens use.
    """

    name: str
    make: Callable[[int, int], EvictionPolicy]
    summary: str
    source: str
    weighs: bool = False
    admission: bool = False
