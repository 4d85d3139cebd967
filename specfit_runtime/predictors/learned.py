"""A small network, trained on recorded decoding."""

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


class Learned(RoutingPredictor):
    """Ask a network that ``specfit train-router`` trained for this target and drafter.

    Parameters
    ----------
    folder : path
        The checkpoint.

    Raises
    ------
    CheckpointError
        If the folder holds none, or a damaged one.

    Notes
    -----
    The network has embeddings of its own, so that it predicts without the target: a recording is
    enough. A prediction is one call for all nodes, three matrix products of O(m) times the number
    of weights. Nodes without a state, as those of a drafter that has none, are predicted from
    token and depth.
    """

    name = "learned"

    def __init__(self, folder: str | Path) -> None:
        from .router_network_files import load_router

        self.folder = Path(folder)
        loaded = load_router(self.folder)
        self._network, self._drafter = loaded.network, loaded.drafter
        self._shape: tuple[int, int, int] | None = None

    def bind(self, model: Any, drafter: Drafter | None) -> None:
        """Move the network to where the target computes.

        Raises
        ------
        InvalidInputError
            If it was trained on the states of a drafter of another kind.
        """
        reads = self._network.shape.state_size > 0
        if reads and drafter is not None and self._drafter not in (None, drafter.name):
            raise InvalidInputError(
                f"the router network in {self.folder} was trained on the states of drafter "
                f"{self._drafter}, not of {drafter.name}; train one for it: specfit train-router"
            )
        self._network.to(model.get_input_embeddings().weight.device)

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """See `RoutingPredictor`; nothing is learned of a text.

        Raises
        ------
        InvalidInputError
            If the network was trained for another shape.
        """
        shape = checked_shape(n_layers, n_experts, top_k)
        own = self._network.shape
        trained = own.n_layers, own.n_experts, own.top_k
        if shape != trained:
            raise InvalidInputError(
                f"the router network in {self.folder} was trained for {trained[0]} layers of "
                f"{trained[1]} experts, top-{trained[2]}; this target has {shape[0]} of "
                f"{shape[1]}, top-{shape[2]}: train one for it, specfit train-router"
            )
        self._shape = shape

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the k experts of each layer that score best.

        Raises
        ------
        InvalidInputError
            If the states have another size than those that it was trained on.
        """
        import torch

        with torch.inference_mode():
            best = self._scores(nodes).topk(self._network.shape.top_k, dim=-1).indices
            return best.to("cpu", torch.int32).numpy()

    def probabilities(self, nodes: DraftNodes) -> NDArray[np.float32]:
        """Return calibrated probabilities; a layer's add up to k.

        Raises
        ------
        InvalidInputError
            As `predict`.
        """
        import torch

        with torch.inference_mode():
            return self._network.probabilities(self._scores(nodes)).cpu().numpy()

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Check the routing; nothing is learned from it."""
        checked_experts(self._shape, tokens, experts)

    def _scores(self, nodes: DraftNodes) -> Tensor:
        import torch

        checked_experts(self._shape)
        device = self._network.scores.weight.device
        states, size = nodes.states, self._network.shape.state_size
        if states is not None and size:
            states = torch.cat([torch.as_tensor(part) for part in states])
            if tuple(states.shape) != (len(nodes.tokens), size):
                raise InvalidInputError(
                    f"the drafter's states have shape {tuple(states.shape)} for "
                    f"{len(nodes.tokens)} nodes; the router network in {self.folder} was trained "
                    f"on states of size {size}, those of another drafter"
                )
            states = states.to(device, torch.float32)
        tokens = torch.from_numpy(np.asarray(nodes.tokens, dtype=np.int64)).to(device)
        depth = torch.from_numpy(np.asarray(nodes.depth, dtype=np.int64)).to(device)
        scores: Tensor = self._network(tokens, depth, states)
        return scores


KIND = PredictorKind(
    name="learned",
    make=Learned,
    summary="a small network from token, drafter state and depth to experts, trained by "
    "specfit train-router",
    source="learned routing predictors, as in EcoSpec",
    needs="DIR",
)
