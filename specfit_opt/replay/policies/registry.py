"""What a replay policy is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost import CostModel
from ...errors import InvalidInputError
from ..pool import Pool


@dataclass(frozen=True, eq=False)
class PassState:
    """What is known before a pass, besides the pool.

    Attributes
    ----------
    resident : ndarray of bool, shape (L, E)
        Experts in fast memory.
    cost_model : CostModel
        Of a pass without drafting.
    draft_time : float
        Seconds per drafted level.
    rate : float or None
        Tokens per second so far; None before the first counted pass.
    """

    resident: NDArray[np.bool_]
    cost_model: CostModel
    draft_time: float
    rate: float | None


@dataclass(frozen=True, eq=False)
class Choice:
    """What a policy drafts and verifies.

    Attributes
    ----------
    mask : ndarray of bool, shape (n,)
        The verified nodes: ancestor-closed, the root included.
    levels : int
        Levels that were drafted to get there; they are paid whatever was chosen.
    """

    mask: NDArray[np.bool_]
    levels: int


class Policy(ABC):
    """Chooses what to draft and verify at every recorded position.

    Attributes
    ----------
    name : str
    objective : str
        ``"ratio"``, ``"surplus"``, or ``""`` for a policy that maximises neither.
    fixed : bool
        Whether what it chooses depends on the pool alone: not on prices, on what is
        resident or on the past.
    """

    name: str
    objective: str = ""
    fixed: bool = False

    def fresh(self) -> Policy:
        """Return a policy without memory of earlier passes, for one replay."""
        return self

    def check(self, n_levels: int, n_nodes: int) -> None:
        """Check that pools of up to ``n_levels`` levels and ``n_nodes`` nodes can serve the policy.

        Raises
        ------
        InvalidInputError
            If they cannot.
        """
        return

    @abstractmethod
    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return what to draft and verify at one position."""

    def observe(self, pool: Pool, choice: Choice) -> None:
        """Learn from the pass that followed ``choice``."""
        return


@dataclass(frozen=True)
class PolicyKind:
    """A family of policies as the registry holds it.

    Attributes
    ----------
    name : str
        As people see it, with a capital letter for a number: ``chain-K``.
    make : callable
        ``make(number, objective) -> Policy``; ``number`` is None for a name without one.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    takes_objective : bool
        Whether it maximises the ratio or the surplus, and so takes the suffix ``-surplus``.
    """

    name: str
    make: Callable[[int | None, str], Policy]
    summary: str
    source: str
    takes_objective: bool = False

    def parse(self, name: str) -> tuple[int | None] | None:
        """Return the number in ``name`` (None if the kind has none) in a tuple, if it fits."""
        stem, dash, last = self.name.rpartition("-")
        if dash and len(last) == 1 and last.isupper():
            found = re.fullmatch(rf"{re.escape(stem)}-(\d{{1,9}})", name)
            return None if found is None else (int(found[1]),)
        return (None,) if name == self.name else None


def positive(number: int | None, name: str) -> int:
    """Return ``number``, which stood in a policy's name, as an int of at least 1.

    Raises
    ------
    InvalidInputError
        If it is 0.
    """
    if not number:
        raise InvalidInputError(f"policy {name}-{number}: the number must be at least 1")
    return number
