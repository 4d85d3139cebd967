"""Times a drafter level by level, as decoding uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .clock import now

if TYPE_CHECKING:
    from ..drafters import Drafter


class DraftTimer:
    """Times the levels of draft trees, each behind a few newly committed tokens.

    Parameters
    ----------
    drafter : Drafter
        Bound to the model.
    device : torch.device
        The model's.
    prompt : sequence of int
        P + 1 tokens.
    features : Tensor, shape (P, F, H), or None
        See :meth:`Drafter.start`.
    new_tokens : sequence of int
        What is committed before each tree.
    new_features : Tensor, shape (m, F, H), or None
    top_k, width, levels : int
        What is asked of the drafter.

    Attributes
    ----------
    seconds : list of list of float
        By level. The first includes reading the committed tokens.
    """

    def __init__(
        self,
        drafter: Drafter,
        device: torch.device,
        prompt: Sequence[int],
        features: Tensor | None,
        new_tokens: Sequence[int],
        new_features: Tensor | None,
        *,
        top_k: int,
        width: int,
        levels: int,
    ) -> None:
        self._drafter = drafter
        self._device = device
        self._prompt = list(prompt)
        self._features = features
        self._new_tokens = list(new_tokens)
        self._new_features = new_features
        self._top_k, self._width = top_k, width
        most = drafter.max_levels
        self._levels = levels if most is None else max(1, min(levels, most))
        self.seconds: list[list[float]] = []

    def warm_up(self) -> None:
        """Draft a tree that is not counted."""
        self._draft()

    def time(self) -> None:
        """Time the levels of a tree."""
        for level, seconds in enumerate(self._draft()):
            if level == len(self.seconds):
                self.seconds.append([])
            self.seconds[level].append(seconds)

    def _draft(self) -> list[float]:
        drafter = self._drafter
        # Always the same text: one that grew with every tree would make later ones slower.
        drafter.start(self._prompt, self._features)
        drafter.begin()
        drafter.level(1, 1)
        drafter.commit(self._new_tokens, self._new_features)
        times: list[float] = []
        drafter.begin()
        for _ in range(self._levels):
            begin = now(self._device)
            level = drafter.level(self._top_k, self._width)
            times.append(now(self._device) - begin)
            if level is None:
                # Finding out that there is nothing to draft takes time as well.
                break
        return times
