"""What predicts the experts of tokens that the target has not run yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    states : object or None
        The drafter's hidden states of these nodes, first dimension m, for predictors that read
        them; None where the drafter has none.
    prob : ndarray of float64, shape (m,), or None
        Path probabilities.
    """

    tokens: NDArray[np.int64]
    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    states: Any = None
    prob: NDArray[np.float64] | None = None


class RoutingPredictor(ABC):
    """Predicts the experts of draft nodes from what the target routed before.

    Attributes
    ----------
    name : str
        As in the registry.
    """

    name: ClassVar[str]

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
        """Return the experts that each node should use, shape (m, L, k).

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


@dataclass(frozen=True)
class PredictorKind:
    """A predictor as the registry holds it.

    Attributes
    ----------
    name : str
    make : callable
        ``make(**options) -> RoutingPredictor``.
    summary : str
        One line for tables.
    source : str
        What it follows.
    """

    name: str
    make: Callable[..., RoutingPredictor]
    summary: str
    source: str
