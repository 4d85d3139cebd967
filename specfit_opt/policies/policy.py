"""What a policy is: it chooses what a cycle drafts and verifies, and learns from the outcome."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Whole, shown
from ..errors import InvalidInputError

if TYPE_CHECKING:
    from .view import DraftView


@dataclass(frozen=True, eq=False)
class Choice:
    """What a policy has verified.

    Attributes
    ----------
    nodes : ndarray of int64, shape (m,)
        Node ids, ascending, ancestor-closed, the root included.
    expected_tokens : float or None
        Tokens that the pass should commit, by the calibrated path probabilities.
    predicted_time : float or None
        Seconds of the whole cycle by the cost model, the drafting that was done included.
    """

    nodes: NDArray[np.int64]
    expected_tokens: float | None = None
    predicted_time: float | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a cycle.

    Attributes
    ----------
    choice : Choice
        What was verified.
    levels : int
        Levels that were drafted.
    accepted : ndarray of int64, shape (a,)
        Node ids along the accepted path, the root first; all of them were verified.
    committed : int
        Tokens that the cycle committed. Usually ``a``: a node's pass yields the token after it.
        Fewer where a stopping criterion ended the text.
    experts : ndarray of int, shape (m, L, k)
        True experts of the verified nodes, in the order of ``choice.nodes``; -1 pads.
    misses : ndarray of int64, shape (L,)
        Experts that the cycle had to load, prefetched ones included.
    seconds : float
        The whole cycle, drafting, prediction, search and bookkeeping included.
    transfer_seconds : float
        Waits for experts.
    """

    choice: Choice
    levels: int
    accepted: NDArray[np.int64]
    committed: int
    experts: NDArray[np.integer]
    misses: NDArray[np.int64]
    seconds: float
    transfer_seconds: float = 0.0


class Policy(ABC):
    """Chooses, cycle by cycle, how far to draft and what to verify.

    Attributes
    ----------
    name : str
        As in the registry, with its number: ``chain-4``. Options for studies may add to it.
    drafts : bool
        Whether it may ever draft; False lets the loop do without a drafter.
    priced : bool
        Whether it asks the view for times; False lets the loop do without a cost model.
    predicts : bool
        Whether it asks the view for experts; False lets the loop do without a predictor.
    needs_levels, needs_nodes : int
        What the trees of a recording must reach at least for it to be played.
    """

    name: str
    drafts: bool = True
    priced: bool = True
    predicts: bool = True
    needs_levels: int = 0
    needs_nodes: int = 1

    @property
    def fixed(self) -> bool:
        """Whether what it chooses depends on the drafted tree alone."""
        return not (self.priced or self.predicts)

    def fresh(self) -> Policy:
        """Return the policy without memory of earlier cycles."""
        return self

    def start(self) -> None:
        """Take note that another text begins; what was learned stays."""
        return

    def to_state(self) -> dict[str, Any] | None:
        """Return what was learned, for a later process; None, the default, if nothing is kept.

        Returns
        -------
        dict or None
            Plain values, as JSON has them: few and robust, not all that was seen.
        """
        return None

    def from_state(self, state: Mapping[str, Any], n_layers: int, n_experts: int) -> None:
        """Begin with what :meth:`to_state` gave in an earlier process.

        Parameters
        ----------
        state : mapping
            From a file: to be checked before anything is changed.
        n_layers, n_experts : int
            Of the model that is decoded.

        Raises
        ------
        InvalidInputError
            If it is nothing that this policy gives.
        """
        raise InvalidInputError(f"policy {self.name} keeps nothing")

    @abstractmethod
    def choose(self, view: DraftView) -> Choice:
        """Draft as far as it seems worth it and return the nodes to verify.

        Raises
        ------
        InvalidInputError
            If the view's parts contradict each other.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn from what the last choice led to."""
        return


@dataclass(frozen=True)
class PolicyKind:
    """A family of policies as the registry holds it.

    Attributes
    ----------
    name : str
        As people see it, with a word in capitals for what varies: ``chain-K``, ``pool-METHOD``.
    make : callable
        ``make(**options) -> Policy``; ``make(text, **options)`` where the name has such a word,
        with what was written in its place. It raises InvalidInputError for what it cannot use.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    default : str
        What a name without the varying part stands for: ``chain`` is ``chain-4``. Empty: it cannot
        be left out.
    """

    name: str
    make: Callable[..., Policy]
    summary: str
    source: str
    default: str = ""

    @property
    def default_name(self) -> str:
        """The name with the default in place of the varying part: ``chain-4``."""
        return f"{self._stem}-{self.default}" if self.default else self.name

    def match(self, name: str) -> tuple[str, ...] | None:
        """Return what ``make`` is to be given for ``name``; None if it is another kind's."""
        if self._stem == self.name:
            return () if name == self.name else None
        if name == self._stem and self.default:
            return (self.default,)
        text = name.removeprefix(f"{self._stem}-")
        return (text,) if text and text != name else None

    @property
    def _stem(self) -> str:
        stem, dash, last = self.name.rpartition("-")
        return stem if dash and last.isupper() else self.name


def number(text: str | int, what: str) -> int:
    """Return the positive whole number that stands in a policy's name or is given as an option.

    Raises
    ------
    InvalidInputError
        If it is none.
    """
    if isinstance(text, str):
        if not re.fullmatch(r"\d{1,9}", text):
            raise InvalidInputError(f"{what} must be a whole number, got {shown(text)}")
        text = int(text)
    value: int = Whole(1)(text, what)
    return value
