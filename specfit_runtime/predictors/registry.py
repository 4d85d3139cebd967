"""What predicts the experts of tokens that the target has not run yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit_opt.checks import Whole

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

    from ..drafters import Drafter


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
    states: Tensor | None = None
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

    def bind(self, model: Any, drafter: Drafter | None) -> None:
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

    def probabilities(self, nodes: DraftNodes) -> NDArray[np.float32] | None:
        """Return how likely each node is to use each expert, shape (m, L, E).

        A layer's probabilities add up to about k. None from a predictor that has none to give,
        which is the default.
        """
        return None

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
        ``make(**options) -> RoutingPredictor``, with what ``needs`` names before the options.
    summary : str
        One line for tables.
    source : str
        What it follows.
    needs : str
        What stands behind the colon in ``"learned:DIR"`` and is ``make``'s first argument; empty if
        the name stands alone.
    optional : bool
        Whether that may be left out.
    """

    name: str
    make: Callable[..., RoutingPredictor]
    summary: str
    source: str
    needs: str = ""
    optional: bool = False

    @property
    def usage(self) -> str:
        """How the predictor is named, such as ``learned:DIR`` or ``router[:DIR]``."""
        if self.optional:
            return f"{self.name}[:{self.needs}]"
        return f"{self.name}:{self.needs}" if self.needs else self.name


def checked_shape(n_layers: int, n_experts: int, top_k: int) -> tuple[int, int, int]:
    """Return the model's shape as positive integers.

    Raises
    ------
    InvalidInputError
        If one is not, or a token uses more experts than there are.
    """
    n_layers = Whole(1)(n_layers, "n_layers")
    n_experts = Whole(1)(n_experts, "n_experts")
    top_k = Whole(1)(top_k, "top_k")
    if top_k > n_experts:
        raise InvalidInputError(f"a token cannot use {top_k} of {n_experts} experts")
    return n_layers, n_experts, top_k


def checked_experts(
    shape: tuple[int, int, int] | None, tokens: ArrayLike = (), experts: ArrayLike | None = None
) -> NDArray[np.integer]:
    """Return the true experts of ``tokens`` after checking that they fit ``shape``.

    Raises
    ------
    InvalidInputError
        If :meth:`RoutingPredictor.start` was not called yet, the array has another shape, or an id
        is no expert.
    """
    if shape is None:
        raise InvalidInputError("the predictor does not know the model's shape; call start first")
    n_layers, n_experts, top_k = shape
    n = len(np.atleast_1d(np.asarray(tokens)))
    ids = np.zeros((n, n_layers, top_k), np.int32) if experts is None else np.asarray(experts)
    if ids.shape != (n, n_layers, top_k) or ids.dtype.kind not in "iu":
        raise InvalidInputError(
            f"experts must be integers of shape ({n}, {n_layers}, {top_k}) for {n} tokens, got "
            f"{ids.dtype} of shape {ids.shape}"
        )
    if ids.size and not -1 <= ids.min() <= ids.max() < n_experts:
        raise InvalidInputError(
            f"experts holds ids from {ids.min()} to {ids.max()}; they must be 0 to "
            f"{n_experts - 1}, -1 pads"
        )
    return ids
