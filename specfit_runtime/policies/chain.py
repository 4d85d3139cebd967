"""A chain of fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._pool import draft
from .registry import Choice, DraftView, Policy, PolicyKind, positive


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

    def __init__(self, length: int = 4) -> None:
        self.length = positive(length, "the length of a chain")
        self.name = f"chain-{self.length}"

    def choose(self, view: DraftView) -> Choice:
        """Return the chain, shorter where the drafter ends early."""
        draft(view, self.length, 1, 1)
        path_prob = view.path_prob
        return Choice(
            np.arange(len(path_prob), dtype=np.int64), expected_tokens=float(path_prob.sum())
        )


def _make(number: int | None, **options: Any) -> Policy:
    assert number is not None  # the kind has a default
    return Chain(number, **options)


KIND = PolicyKind(
    name="chain-K",
    make=_make,
    summary="the likeliest chain of K tokens",
    source="speculative decoding, arXiv 2211.17192, 2302.01318",
    default=4,
)
