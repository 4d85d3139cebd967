"""Which experts the tokens of some forward passes were routed to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInputError


class RoutingRecord:
    """Collects the routing of forward passes, layer by layer.

    Parameters
    ----------
    n_layers : int
        MoE layers.
    top_k : int
        Experts per token and layer.
    """

    def __init__(self, n_layers: int, top_k: int) -> None:
        self._top_k = top_k
        self._chunks: list[list[NDArray[np.int32]]] = [[] for _ in range(n_layers)]

    def note(self, layer: int, routing: NDArray[np.int32]) -> None:
        """Add the tokens of a layer's forward pass.

        Parameters
        ----------
        layer : int
            Counted over the MoE layers.
        routing : ndarray of int, shape (T, k)
        """
        self._chunks[layer].append(np.array(routing, dtype=np.int32))

    def experts(self) -> NDArray[np.int32]:
        """Return the experts of every token so far, shape (n, L, k), in the order of the tokens.

        Raises
        ------
        InvalidInputError
            If the layers saw different numbers of tokens, because a forward pass did not run to its
            end.
        """
        empty = np.empty((0, self._top_k), dtype=np.int32)
        layers = [np.concatenate([empty, *chunks]) for chunks in self._chunks]
        sizes = [len(layer) for layer in layers]
        if len(set(sizes)) > 1:
            raise InvalidInputError(
                "the record is incomplete: a forward pass did not run to its end, so that the "
                f"layers saw between {min(sizes)} and {max(sizes)} tokens; record it again"
            )
        return np.stack(layers, axis=1)
