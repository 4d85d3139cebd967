"""The target's own routers, applied to an estimate of what they will read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .registry import DraftNodes, PredictorKind, RoutingPredictor, checked_experts, checked_shape

if TYPE_CHECKING:
    from torch import Tensor

    from ..drafters import Drafter
    from ._router_scores import RouterScores


class Router(RoutingPredictor):
    """Score the experts from the token's embedding and the drafter's state, as the routers would.

    Parameters
    ----------
    folder : path, optional
        A fitted map, from ``specfit fit-router``. Without one nothing is fitted.

    Raises
    ------
    CheckpointError
        If the folder holds no such map.

    Notes
    -----
    *Without a map* a layer's hidden state is taken to lie between the embedding of the token, in
    the first MoE layer, and the drafter's state, in the last, both at unit scale; the layer's norm
    and router read it, and experts are chosen as the family chooses them, biases and groups
    included. A drafter's state stands for the target's last layer at the token *before*, and
    attention is left out altogether, so this is a poor estimate. On the shipped model with its
    EAGLE-3 head the recall of depth-1 nodes is 0.21 on the kinds of text that it was trained on,
    where chance gives 0.06: 0.32 in the first layer, 0.10 in the second, 0.27 in the last. The
    embedding alone reaches 0.15, the state alone 0.20, their sum 0.20
    (``benchmarks/router_evaluation.py``).

    *With a map* each layer's scores are linear in both, see `fit_router_map`.

    Prediction takes O(m L E H) without a map and O(m L E (H + H_d)) with one, in float32. The
    routers' weights are copied once, L E H numbers; with a map they are not.
    """

    name = "router"

    def __init__(self, folder: str | Path | None = None) -> None:
        self._map = None
        if folder is not None:
            from .router_map import RouterMap

            self._map = RouterMap.load(folder)
        self._scores: RouterScores | None = None
        self._shape: tuple[int, int, int] | None = None

    def bind(self, model: Any, drafter: Drafter | None) -> None:
        """Copy the target's routers, or check that the map is for this target.

        Raises
        ------
        InvalidInputError
            If no family serves the target, or the map was fitted for another one.
        """
        from ._router_scores import GateScores, MapScores

        self._scores = GateScores(model) if self._map is None else MapScores(model, self._map)

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """See `RoutingPredictor`; nothing is learned of a text.

        Raises
        ------
        InvalidInputError
            If there is no target yet, or the shape is not that of the target.
        """
        shape = checked_shape(n_layers, n_experts, top_k)
        if self._scores is None:
            raise InvalidInputError(
                "predictor router has no target yet: call bind(model, drafter) before start"
            )
        if shape != self._scores.shape:
            bound = self._scores.shape
            raise InvalidInputError(
                f"predictor router is bound to a target of {bound[0]} layers of {bound[1]} "
                f"experts, top-{bound[2]}, not {shape[0]} of {shape[1]}, top-{shape[2]}; bind the "
                "model that is meant"
            )
        self._shape = shape

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the experts that score best.

        Raises
        ------
        InvalidInputError
            If drafted nodes come without the drafter's states, or with states of another size.
        """
        scores, states = self._ready(nodes)
        return scores.experts(nodes.tokens, states)

    def probabilities(self, nodes: DraftNodes) -> NDArray[np.float32] | None:
        """Return the fitted scores as probabilities; None without a map.

        Raises
        ------
        InvalidInputError
            As `predict`.
        """
        from ._router_scores import MapScores

        scores, states = self._ready(nodes)
        if not isinstance(scores, MapScores):
            return None
        return scores.probabilities(nodes.tokens, states)

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Check the routing; nothing is learned from it."""
        checked_experts(self._shape, tokens, experts)

    def _ready(self, nodes: DraftNodes) -> tuple[RouterScores, Tensor | None]:
        checked_experts(self._shape)
        assert self._scores is not None  # start has seen to it
        states, size = nodes.states, self._scores.state_size
        if states is None:
            if (np.asarray(nodes.parent) >= 0).any():
                raise InvalidInputError(
                    "predictor router reads the drafter's hidden states, and there are none: "
                    "prompt-lookup has none, eagle3:DIR and lm:DIR have; record traces with "
                    "--states; or use another predictor, such as frequency"
                )
            # Nothing was drafted yet, so that the state before the root is not known.
            return self._scores, None
        if tuple(states.shape) != (len(nodes.tokens), size):
            why = (
                "the target's hidden size; fit a map for this drafter: specfit fit-router"
                if self._map is None
                else "what the map was fitted to"
            )
            raise InvalidInputError(
                f"the drafter's states have shape {tuple(states.shape)} for {len(nodes.tokens)} "
                f"nodes, but predictor router needs size {size}, {why}"
            )
        return self._scores, states


KIND = PredictorKind(
    name="router",
    make=Router,
    summary="the target's own routers on an estimate of what they will read, or, with a folder, a "
    "linear map fitted to recorded decoding",
    source="routers run ahead of time, as prefetchers do with the hidden state of the layer before",
    needs="DIR",
    optional=True,
)
