"""What predicts the experts of tokens that the target has not run yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidInputError

__all__ = ["DraftNodes", "RoutingPredictor"]


@dataclass(frozen=True, eq=False)
class DraftNodes:
    """Draft nodes whose experts are asked for.

    Attributes
    ----------
    token : ndarray of int64, shape (n,)
        Token ids.
    parent : ndarray of int64, shape (n,)
        Tree ids of the parents; -1 for the root.
    depth : ndarray of int64, shape (n,)
        Edges from the root.
    prob : ndarray of float64, shape (n,), or None
        Path probabilities.
    truth : ndarray of int, shape (n, L, k), or None
        Recorded routing, -1 pads. Replays and evaluations give it, for ceilings; decoding cannot.
    states : array_like of float, shape (n, H_d), a list of such, or None
        The drafter's hidden state that each node was drafted from: that of its parent, whose path
        the drafter had run over, as its output layer reads it, after the final norm. The root's is
        that of the token before it, or zeros where the drafter did not run over that one yet. NumPy
        arrays or tensors; a list holds parts whose rows, one below the other, are the nodes'. None
        where the drafter has no states.
    """

    token: NDArray[np.int64]
    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    prob: NDArray[np.float64] | None = None
    truth: NDArray[np.integer] | None = None
    states: Any = None


class RoutingPredictor(ABC):
    """Predicts the experts of draft nodes from what the target routed before.

    Attributes
    ----------
    name : str
        What reports call it.
    """

    name: ClassVar[str]

    def bind(self, model: Any, drafter: Any) -> None:
        """Take from the target and the drafter what predicting needs.

        A live decode calls it before `start`; a replay has no model and does not. By default
        nothing is taken.

        Parameters
        ----------
        model : transformers.PreTrainedModel
            The target. It is read and never written to.
        drafter : specfit_runtime.drafters.Drafter or None
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

        Raises
        ------
        InvalidInputError
            If the predictor was made for another shape, or no model has this one.
        """

    @abstractmethod
    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        """Return the experts that each node should use, the most likely first.

        Parameters
        ----------
        nodes : DraftNodes

        Returns
        -------
        ndarray of int32, shape (n, L, k)
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

    def to_state(self) -> tuple[NDArray[np.int64], NDArray[np.integer]] | None:
        """Return what was learned, for a later process; None, the default, if nothing is kept.

        Returns
        -------
        tokens : ndarray of int64, shape (n,)
            Distinct token ids.
        experts : ndarray of int, shape (n, L, k)
            What is expected of each; -1 pads.
        """
        return None

    def from_state(self, tokens: NDArray[np.int64], experts: NDArray[np.integer]) -> None:
        """Begin with what :meth:`to_state` gave in an earlier process, after :meth:`start`.

        Raises
        ------
        InvalidInputError
            If it is nothing that this predictor gives.
        """
        raise InvalidInputError(f"predictor {self.name} keeps nothing")
