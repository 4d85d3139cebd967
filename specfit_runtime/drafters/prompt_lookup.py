"""Drafts from the text itself: what followed the same words before."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError
from ..part_kind import PartKind
from .drafter import Candidates, Drafter

__all__ = ["PromptLookup"]


class PromptLookup(Drafter):
    """Drafts the continuations of earlier occurrences of the text's last tokens.

    The longest suffix of ``max_ngram`` down to ``min_ngram`` tokens that occurred before is looked
    up, and what followed all of its occurrences is merged into a tree. A child that followed c of
    the N occurrences of its parent's path has probability c / (N + D), D being the number of
    different tokens that followed: the estimate of Witten and Bell, which leaves D / (N + D) for
    tokens not seen there.

    An index from n-grams to the places after them grows with the text: one dictionary entry per
    token and length, found in constant time. A level takes O(k log k) for k occurrences.

    Parameters
    ----------
    max_ngram, min_ngram : int
        Lengths of the suffixes that are looked up.

    References
    ----------
    A. Saxena, Prompt Lookup Decoding, 2023. I. H. Witten and T. C. Bell, "The zero-frequency
    problem", IEEE Transactions on Information Theory 37 (1991), method C.
    """

    name: ClassVar[str] = "prompt-lookup"

    def __init__(self, max_ngram: int = 4, min_ngram: int = 1) -> None:
        super().__init__()
        if not 1 <= min_ngram <= max_ngram:
            raise InvalidInputError(
                f"prompt lookup needs 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}"
            )
        self.max_ngram, self.min_ngram = max_ngram, min_ngram
        self._restart(0)

    def _bind(self, model: Any) -> None:
        return

    def _restart(self, token: int) -> None:
        self._tokens = [token]
        self._text = np.zeros(1024, dtype=np.int64)
        self._text[0] = token
        #: Places that follow an n-gram, by its tokens.
        self._after: dict[tuple[int, ...], list[int]] = {}
        self._places = np.empty(0, dtype=np.int64)  # the places after the expanded nodes
        self._owner = np.empty(0, dtype=np.int64)  # and whose they are

    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        text = self._tokens
        begin, end = len(text), len(text) + len(tokens)
        for token in tokens:
            place = len(text)
            for length in range(self.min_ngram, min(self.max_ngram, place) + 1):
                self._after.setdefault(tuple(text[place - length :]), []).append(place)
            text.append(token)
        if end > len(self._text):
            self._text = np.resize(self._text, 2 * end)
        self._text[begin:end] = tokens

    def _children(self, depth: int, top_k: int) -> Candidates:
        if not depth:
            self._places = self._occurrences()
            self._owner = np.zeros_like(self._places)
        inside = self._places < len(self._tokens)
        places, owner = self._places[inside], self._owner[inside]
        size = self._vocab_size or 0
        group, which, count = np.unique(
            owner * size + self._text[places], return_inverse=True, return_counts=True
        )
        row, token = np.divmod(group, size)
        total = np.bincount(row, count) + np.bincount(row)
        order = np.lexsort((token, -count, row))
        sorted_row = row[order]
        order = order[np.arange(len(order)) - np.searchsorted(sorted_row, sorted_row) < top_k]
        # Remember which candidate each place led to, or none.
        candidate = np.full(len(group), -1)
        candidate[order] = np.arange(len(order))
        self._places, self._owner = places, candidate[which]
        row = row[order]
        return Candidates(row, token[order], count[order] / total[row])

    def _descend(self, found: Candidates, chosen: NDArray[np.int64]) -> None:
        slot = np.full(len(found.row) + 1, -1)  # the last one is for the places that led to none
        slot[chosen] = np.arange(len(chosen))
        owner = slot[self._owner]
        kept = owner >= 0
        self._places, self._owner = self._places[kept] + 1, owner[kept]

    def _occurrences(self) -> NDArray[np.int64]:
        """Return the places after the earlier occurrences of the longest suffix that has any."""
        text = self._tokens
        for length in range(min(self.max_ngram, len(text)), self.min_ngram - 1, -1):
            places = self._after.get(tuple(text[-length:]))
            if places:
                return np.array(places, dtype=np.int64)
        return np.empty(0, dtype=np.int64)


KIND: PartKind[Drafter] = PartKind(
    name="prompt-lookup",
    make=PromptLookup,
    summary="what followed the same words before; no weights",
)
