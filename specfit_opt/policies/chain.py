"""A chain of fixed length."""

from __future__ import annotations

import numpy as np

from .drafting import DraftShape
from .policy import Choice, Policy, PolicyKind, number
from .view import DraftView


class Chain(Policy):
    """Draft the likeliest next token ``length`` times and verify all of them.

    Parameters
    ----------
    length : int
        Draft tokens per pass. Four is what most engines start from.

    Raises
    ------
    InvalidInputError
        If it is not a positive integer.
    """

    priced = False
    predicts = False

    def __init__(self, length: int | str = 4) -> None:
        self.length = self.needs_levels = number(length, "the length of a chain")
        self.shape = DraftShape(self.length, 1, 1)
        self.name = f"chain-{self.length}"

    def choose(self, view: DraftView) -> Choice:
        """Return the chain, shorter where the drafter ends early."""
        self.shape.draft(view)
        path_prob = view.path_prob
        return Choice(
            np.arange(len(path_prob), dtype=np.int64), expected_tokens=float(path_prob.sum())
        )


KIND = PolicyKind(
    name="chain-K",
    make=Chain,
    summary="the likeliest chain of K tokens; K levels drafted",
    source="speculative decoding, arXiv 2211.17192, 2302.01318",
    default="4",
)
