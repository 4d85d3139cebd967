"""What a simulated expert cache is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class Cache(ABC):
    """The experts in fast memory, pass by pass, as the cache policy leaves them."""

    @property
    @abstractmethod
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): what is in fast memory now."""

    @abstractmethod
    def use(
        self, used: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
    ) -> NDArray[np.bool_]:
        """Run one pass and return the experts that were missing, each of them loaded once.

        Parameters
        ----------
        used : ndarray of bool, shape (L, E)
            Experts that the pass uses.
        weight : ndarray of float64, shape (L, E), optional
            Probability that a committed token uses the expert, as the pass began; for kinds that
            weigh. None: every used expert is certain.
        """

    def committed(self, tokens: int) -> None:
        """Learn how many tokens the last pass committed; one, if nothing is said.

        For kinds that reckon in tokens: a pass over a tree may stand for many plain ones.
        """
        return

    @abstractmethod
    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Go on with what is in fast memory, whatever was there before.

        What is known of earlier uses is kept; an expert of which nothing is known counts as never
        used.

        Parameters
        ----------
        resident : ndarray of bool, shape (L, E)
            Copied; at most as many experts of a layer as there are slots.
        """

    def foresee(self, passes: Sequence[NDArray[np.bool_]]) -> None:
        """Learn what all coming passes use; called before the first, for clairvoyant kinds."""
        return


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
    weighs : bool
        Whether it makes use of the weights of a pass.
    clairvoyant : bool
        Whether it must be told all passes beforehand.
    """

    name: str
    make: Callable[[int, int, int], Cache]
    summary: str
    source: str
    weighs: bool = False
    clairvoyant: bool = False
