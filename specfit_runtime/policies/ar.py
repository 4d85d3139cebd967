"""Plain autoregressive decoding: nothing drafted, one token per pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import Choice, DraftView, Policy, PolicyKind


class Autoregressive(Policy):
    """Verify the root alone; neither drafter, predictor nor cost model are asked."""

    name = "ar"
    drafts = False
    priced = False
    predicts = False

    def choose(self, view: DraftView) -> Choice:
        """Return the root."""
        return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0)


def _make(number: int | None, **options: Any) -> Policy:
    return Autoregressive(**options)


KIND = PolicyKind(
    name="ar",
    make=_make,
    summary="plain decoding: no draft, one token per pass",
    source="what every engine does without a drafter",
)
