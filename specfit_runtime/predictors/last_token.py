"""The experts of the last committed token, for every draft node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .registry import DraftNodes, PredictorKind, RoutingPredictor, checked_experts, checked_shape


class LastToken(RoutingPredictor):
    """Expect every draft node to use what the token that the target ran last used.

    Neighbouring tokens share experts, and this one needs no learning; but what it predicts is in
    fast memory already, so by itself it lets every draft token look free.
    """

    name = "last-token"

    def __init__(self) -> None:
        self._shape: tuple[int, int, int] | None = None

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """Forget the last text."""
        self._shape = checked_shape(n_layers, n_experts, top_k)
        self._last = np.full((n_layers, top_k), -1, dtype=np.int32)

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the last token's experts for each node: O(m L k)."""
        checked_experts(self._shape)
        return np.repeat(self._last[None], len(nodes.tokens), axis=0)

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Remember the last row."""
        ids = checked_experts(self._shape, tokens, experts)
        if len(ids):
            self._last = ids[-1].astype(np.int32)


KIND = PredictorKind(
    name="last-token",
    make=LastToken,
    summary="what the last committed token used, for every node",
    source="neighbouring tokens share experts; the prior that needs no learning",
)
