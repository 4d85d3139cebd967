"""What predicts the experts of tokens that the target has not run yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit_opt.checks import Whole
from specfit_opt.routing_predictor import (
    DraftNodes,  # noqa: F401
    RoutingPredictor,
)

from ..errors import InvalidInputError


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
