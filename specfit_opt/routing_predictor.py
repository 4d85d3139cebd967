"""What a predictor of routing is: it says which experts draft nodes will use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class DraftNodes:
    """Draft nodes whose experts are asked for.

    Attributes
    ----------
    tokens : ndarray of int64, shape (m,)
        Token ids.
    parent : ndarray of int64, shape (m,)
        Tree ids of the parents; -1 for the root.
    depth : ndarray of int64, shape (m,)
        Edges from the root.
    states : Tensor, floating point, shape (m, H_d), or None
        The drafter's hidden state that each node was drafted from: that of its parent, whose path
        the drafter had run over, as its output layer reads it, after the final norm. The root's is
        that of the token before it, or zeros where the drafter did not run over that one yet. None
        where the drafter has no states.
    prob : ndarray of float64, shape (m,), or None
        Path probabilities.
    truth : ndarray of int, shape (m, L, k), or None
        Recorded routing, -1 pads. Replays and evaluations give it, for ceilings; decoding cannot.
    """

    tokens: NDArray[np.int64]
    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    states: Sequence[Any] | None = None
    prob: NDArray[np.float64] | None = None
    truth: NDArray[np.integer] | None = None


class RoutingPredictor(ABC):
    """Predicts the experts of draft nodes from what the target routed before.

    Attributes
    ----------
    name : str
        As in the registry.
    """

    name: ClassVar[str]

    def bind(self, model: Any, drafter: Any) -> None:
        """Take from the target and the drafter what predicting needs; called before `start`.

        By default nothing is taken.

        Parameters
        ----------
        model : transformers.PreTrainedModel
            The target. It is read and never written to.
        drafter : Drafter or None
            Bound to the target; None where nothing is drafted.

        Raises
        ------
        InvalidInputError
            If the predictor is for another target or drafter.
        """
        return

    @abstractmethod
    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        """Prepare for another text of a model of this shape.

        What was learned of a model of the same shape stays; another shape begins anew.

        Parameters
        ----------
        n_layers, n_experts, top_k : int
            MoE layers, experts per layer, experts per token.
        """

    @abstractmethod
    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the experts that each node should use, the most likely first, shape (m, L, k).

        -1 pads where fewer are known: before anything was observed, everything is padding.
        """

    @abstractmethod
    def observe(self, tokens: Sequence[int] | NDArray[np.integer], experts: NDArray[Any]) -> None:
        """Learn the true routing of committed tokens.

        Parameters
        ----------
        tokens : sequence of int, length n
            The tokens that the target ran, in the order of the text.
        experts : array_like of int, shape (n, L, k)
            Their true experts; -1 pads.
        """
