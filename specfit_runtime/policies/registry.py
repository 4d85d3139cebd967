"""What a decoding policy is, what it sees, and what it learns afterwards."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.schema import shown

from ..errors import InvalidInputError


class DraftView(ABC):
    """One cycle as a policy sees it: the tree drafted so far, and what drafting and loading cost.

    A view serves a single :meth:`Policy.choose`. Node ids are those of the drafter: the root, the
    last committed token, is 0, and nodes count on in the order of their drafting, level by level,
    so that parents come before their children.
    """

    @property
    @abstractmethod
    def parent(self) -> NDArray[np.int64]:
        """Parent of each node, shape (n,); -1 for the root."""

    @property
    @abstractmethod
    def token(self) -> NDArray[np.int64]:
        """Token id of each node, shape (n,)."""

    @property
    @abstractmethod
    def prob(self) -> NDArray[np.float64]:
        """The drafter's own probability of each node given its parent, shape (n,); 1: the root."""

    @property
    @abstractmethod
    def path_prob(self) -> NDArray[np.float64]:
        """Calibrated probability that a node and all its ancestors are accepted, shape (n,).

        1 for the root, never above the parent's.
        """

    @property
    @abstractmethod
    def depth(self) -> NDArray[np.int64]:
        """Edges from the root, shape (n,)."""

    @property
    @abstractmethod
    def levels(self) -> int:
        """Levels drafted so far; 0 before the first :meth:`grow`."""

    @property
    @abstractmethod
    def max_levels(self) -> int | None:
        """Levels that the drafter can draft in all, as far as it knows; None: no limit known."""

    @property
    @abstractmethod
    def frontier(self) -> NDArray[np.int64]:
        """Nodes whose children the next level would hold."""

    @property
    @abstractmethod
    def cost_model(self) -> CostModel:
        """Time of a pass without drafting, corrected by what passes took so far."""

    @property
    @abstractmethod
    def resident(self) -> NDArray[np.bool_]:
        """Experts in fast memory, shape (L, E). A live view: copy what must outlast the cycle."""

    @property
    @abstractmethod
    def slots(self) -> NDArray[np.int64]:
        """Experts of each layer that the cache can hold, shape (L,)."""

    @property
    @abstractmethod
    def cache_policy(self) -> str:
        """What the cache evicts, by its name in ``specfit_opt.caches.CACHE_RULES``."""

    @property
    @abstractmethod
    def level_time(self) -> float:
        """Predicted seconds of drafting one more level."""

    @property
    @abstractmethod
    def draft_time(self) -> float:
        """Seconds spent on drafting in this cycle so far."""

    @property
    @abstractmethod
    def rate(self) -> float | None:
        """Tokens per second of this decode so far; None before its first cycle."""

    @property
    @abstractmethod
    def acceptance(self) -> Sequence[float]:
        """Probability that some child of an accepted, expanded node is accepted.

        Indexed by the child's depth (entry 0 is not used); the last entry serves deeper ones.
        """

    @abstractmethod
    def experts(self, first: int = 0) -> NDArray[np.int32]:
        """Return the predicted experts of the nodes from ``first`` on, shape (n - first, L, k).

        -1 pads.
        """

    @abstractmethod
    def grow(self, top_k: int, width: int) -> bool:
        """Draft one more level: ``top_k`` children of each frontier node.

        Parameters
        ----------
        top_k : int
            Children per node.
        width : int
            Nodes of the new level, those of highest path probability, that the level after it
            would expand.

        Returns
        -------
        bool
            False if the drafter had no more to give; the tree is then as it was.
        """


@dataclass(frozen=True, eq=False)
class Choice:
    """What a policy has verified.

    Attributes
    ----------
    nodes : ndarray of int64, shape (m,)
        Node ids, ascending, ancestor-closed, the root included.
    objective : float or None
        What the policy maximised, if anything: tokens per second, or tokens of surplus at a rate.
    expected_tokens : float or None
        Tokens that the pass should commit, by the calibrated path probabilities.
    predicted_time : float or None
        Seconds of the whole cycle by the cost model, the drafting that was done included.
    predicted_misses : ndarray of int64, shape (L,), or None
        Experts per layer that the pass should have to load, by the predicted routing.
    search_seconds : float
        Seconds that choosing took, drafting and prediction of routing excluded.
    reason : str
        One sentence for people on why drafting stopped where it did; may be empty.
    """

    nodes: NDArray[np.int64]
    objective: float | None = None
    expected_tokens: float | None = None
    predicted_time: float | None = None
    predicted_misses: NDArray[np.int64] | None = None
    search_seconds: float = 0.0
    reason: str = ""


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
    draft_seconds : float
        Of these, drafting.
    search_seconds : float
        Predicting the routing and choosing.
    verify_seconds : float
        The target's pass without the waits for experts.
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
    draft_seconds: float = 0.0
    search_seconds: float = 0.0
    verify_seconds: float = 0.0
    transfer_seconds: float = 0.0


class Policy(ABC):
    """Chooses, cycle by cycle, how far to draft and what to verify.

    Attributes
    ----------
    name : str
        As in the registry, with its number: ``chain-4``.
    drafts : bool
        Whether it may ever draft; False lets the loop do without a drafter.
    priced : bool
        Whether it asks the view for times; False lets the loop do without a cost model.
    predicts : bool
        Whether it asks the view for experts; False lets the loop do without a predictor.
    """

    name: str
    drafts: bool = True
    priced: bool = True
    predicts: bool = True

    def fresh(self) -> Policy:
        """Return the policy without memory of earlier cycles."""
        return self

    def start(self) -> None:
        """Take note that another text begins; what was learned stays."""
        return

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
        As people see it, with a capital letter for a number: ``chain-K``.
    make : callable
        ``make(number, **options) -> Policy``; ``number`` is None unless the name has one.
    summary : str
        One line for tables.
    source : str
        What the rule follows.
    default : int or None
        The number that a name without one stands for: ``chain`` is ``chain-4``.
    """

    name: str
    make: Callable[..., Policy]
    summary: str
    source: str
    default: int | None = None

    @property
    def default_name(self) -> str:
        """The name with the default number: ``chain-4``."""
        return self.name if self.default is None else f"{self.name[:-1]}{self.default}"

    def parse(self, name: str) -> tuple[int | None] | None:
        """Return the number that ``name`` stands for in a tuple, or None if it is another kind's.

        The number is None for a kind that has none.
        """
        stem, dash, last = self.name.rpartition("-")
        if dash and len(last) == 1 and last.isupper():
            if name == stem:
                return (self.default,)
            found = re.fullmatch(rf"{re.escape(stem)}-(\d{{1,9}})", name)
            return None if found is None else (int(found[1]),)
        return (None,) if name == self.name else None


def positive(value: Any, what: str) -> int:
    """Return ``value`` as an int of at least 1.

    Raises
    ------
    InvalidInputError
        If it is no integer or less.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or value < 1:
        raise InvalidInputError(f"{what} must be an integer of at least 1, got {shown(value)}")
    return int(value)
