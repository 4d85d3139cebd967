"""A small network, trained on recorded decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor

from ..errors import InvalidInputError
from ..part_kind import PartKind
from ._checks import checked_experts, checked_shape

if TYPE_CHECKING:
    from torch import Tensor

    from ..drafters import Drafter


class Learned(RoutingPredictor):
    """Ask a network that ``specfit train-predictor`` trained for this target and drafter.

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
    enough. A prediction is one call for all nodes, three matrix products of O(n) times the number
    of weights. Nodes without a state, as those of a drafter that has none, are predicted from
    token and depth.
    """

    name = "learned"

    def __init__(self, folder: str | Path) -> None:
        from .routing_network_files import load_network

        self.folder = Path(folder)
        self._network, self._drafter = load_network(self.folder)
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
                f"the routing network in {self.folder} was trained on the states of drafter "
                f"{self._drafter}, not of {drafter.name}; train one for it: specfit train-predictor"
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
                f"the routing network in {self.folder} was trained for {trained[0]} layers of "
                f"{trained[1]} experts, top-{trained[2]}; this target has {shape[0]} of "
                f"{shape[1]}, top-{shape[2]}: train one for it, specfit train-predictor"
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

        checked_experts(self._shape)
        network = self._network
        device = network.scores.weight.device
        token, depth = (
            torch.from_numpy(np.asarray(ids, dtype=np.int64)).to(device)
            for ids in (nodes.token, nodes.depth)
        )
        with torch.inference_mode():
            scores = network(token, depth, self._states(nodes, device))
            best: Tensor = scores.topk(network.shape.top_k, dim=-1).indices
            return best.to("cpu", torch.int32).numpy()

    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Check the routing; nothing is learned from it."""
        checked_experts(self._shape, tokens, experts)

    def _states(self, nodes: DraftNodes, device: Any) -> Tensor | None:
        """Return the nodes' states as one tensor; None where there are none or none are read."""
        import torch

        size, n = self._network.shape.state_size, len(nodes.token)
        if nodes.states is None or not size:
            return None
        parts = nodes.states if isinstance(nodes.states, (list, tuple)) else [nodes.states]
        # Arrays are copied, since those of a recording are read-only, which torch warns of.
        states = [
            torch.as_tensor(part.astype(np.float32) if isinstance(part, np.ndarray) else part)
            for part in parts
        ]
        shapes = [tuple(part.shape) for part in states]
        if any(shape[1:] != (size,) for shape in shapes) or sum(s[0] for s in shapes) != n:
            raise InvalidInputError(
                f"the drafter's states have the shapes {shapes} for {n} nodes; the routing network "
                f"in {self.folder} was trained on states of size {size}, those of another drafter"
            )
        return torch.cat([part.to(device, torch.float32) for part in states]) if states else None


KIND: PartKind[RoutingPredictor] = PartKind(
    name="learned",
    make=Learned,
    summary="a small network from token, drafter state and depth to experts, trained by "
    "specfit train-predictor",
    needs="DIR",
)
