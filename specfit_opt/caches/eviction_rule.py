"""What an eviction rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: One layer by its number, or ``...`` for all of them.
Layers = int | EllipsisType


class EvictionRule(ABC):
    """Remembers how the experts of every layer were used, and ranks them: the lowest goes first.

    A cache tells the rule what happens and decides itself who may go: at the end of a pass, those
    that were there and those that the pass loaded compete for the slots, so that what was just
    loaded may be the first to go. Layers are independent of each other. Masks are of shape (L, E)
    for all layers, as a replay runs a pass, or (E,) for one, as the expert cache does. A rule must
    not rely on hearing of every step: after an interrupt, one may go untold.

    Parameters
    ----------
    n_layers, n_experts : int
    """

    @abstractmethod
    def __init__(self, n_layers: int, n_experts: int) -> None: ...

    @abstractmethod
    def use(self, used: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that a pass uses these experts, in a slot or not.

        Parameters
        ----------
        used : ndarray of bool, shape (L, E), or (E,) of one layer
        layer : int, optional
            Default: all layers.
        """

    def load(self, loaded: NDArray[np.bool_], layer: Layers = ...) -> None:
        """Note that these experts are loaded: missing in a pass that uses them, or ahead of one.

        Called after :meth:`use` of the same pass; shapes are as there.
        """
        return

    def committed(self, tokens: int) -> None:
        """Note how many tokens the last pass committed; one, if nothing is said.

        For rules that count in tokens: a pass over a tree may stand for many plain ones.
        """
        return

    def foresee(self, passes: Sequence[NDArray[np.bool_]]) -> None:
        """Learn what all coming passes use, before the first; for clairvoyant rules."""
        return

    @abstractmethod
    def rank(self, layer: Layers = ...) -> NDArray[Any]:
        """Return the rank of every expert, shape (L, E) or (E,), >= 0.

        The lowest goes first. Integers are below 2**46, so that an id fits beside them. The array
        may be the rule's own: read it only.
        """


@dataclass(frozen=True)
class CacheRule:
    """An eviction rule as the registry holds it.

    Attributes
    ----------
    name : str
        What ``cache_policy`` takes.
    make : callable
        ``make(n_layers, n_experts) -> EvictionRule``, which knows of no use yet.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    clairvoyant : bool
        Whether it must be told all passes beforehand, so that it serves replays alone.
    """

    name: str
    make: Callable[[int, int], EvictionRule]
    summary: str
    source: str
    clairvoyant: bool = False
