"""The recorded routing itself, for ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor

from ..errors import InvalidInputError
from ._checks import checked_experts, checked_shape
from .predictor_kind import PredictorKind


class Oracle(RoutingPredictor):
    """Give the routing that was recorded of each node.

    For replays and evaluations, which know it: what a perfect predictor would be worth.
    """

    name = "oracle"

    def __init__(self) -> None:
        self._shape: tuple[int, int, int] | None = None

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """Prepare for a text; there is nothing to forget."""
        self._shape = checked_shape(n_layers, n_experts, top_k)

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the nodes' recorded routing.

        Raises
        ------
        InvalidInputError
            Where none is given, as in decoding.
        """
        checked_experts(self._shape)
        if nodes.truth is None:
            raise InvalidInputError(
                "predictor oracle knows the routing of recorded nodes alone: replay or evaluate a "
                "trace with it, and decode with another predictor, such as frequency"
            )
        return checked_experts(self._shape, nodes.token, nodes.truth).astype(np.int32)

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Check the routing; nothing is learned from it."""
        checked_experts(self._shape, tokens, experts)


KIND = PredictorKind(
    name="oracle",
    make=Oracle,
    summary="the recorded routing, in replays and evaluations alone",
    source="a ceiling: what a perfect predictor would be worth",
)
