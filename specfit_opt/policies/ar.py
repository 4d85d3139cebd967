"""Plain autoregressive decoding: nothing drafted, one token per pass."""

from __future__ import annotations

import numpy as np

from .policy import Choice, Policy, PolicyKind
from .view import DraftView


class Autoregressive(Policy):
    """Verify the root alone; neither drafter, predictor nor cost model are asked."""

    name = "ar"
    drafts = False
    priced = False
    predicts = False

    def choose(self, view: DraftView) -> Choice:
        """Return the root."""
        return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0)


KIND = PolicyKind(
    name="ar",
    make=Autoregressive,
    summary="plain decoding: no draft, one token per pass",
    source="what every engine does without a drafter",
)
