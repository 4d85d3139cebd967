"""The recorded routing in place of a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..routing_predictor import DraftNodes, RoutingPredictor


class TrueRouting(RoutingPredictor):
    """Gives the routing that was recorded of each node: what a perfect predictor would."""

    name = "oracle"

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """Prepare for a text; there is nothing to forget."""

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the nodes' recorded routing.

        Raises
        ------
        InvalidInputError
            Where none is given, as in decoding.
        """
        if nodes.truth is None:
            raise InvalidInputError(
                "the true routing is known of recorded nodes alone: replay or evaluate a trace "
                "with it, and decode with a predictor, such as frequency"
            )
        return nodes.truth.astype(np.int32)

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Nothing is learned."""
