"""Checks that the predictors share: the model's shape, and routing of that shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specfit_opt.checks import Whole

from ..errors import InvalidInputError


def checked_shape(n_layers: int, n_experts: int, top_k: int) -> tuple[int, int, int]:
    """Return the model's shape as positive integers.

    Raises
    ------
    InvalidInputError
        If one is not, or a token uses more experts than there are.
    """
    positive = Whole(1)
    layers = positive(n_layers, "n_layers")
    experts, used = positive(n_experts, "n_experts"), positive(top_k, "top_k")
    if used > experts:
        raise InvalidInputError(f"a token cannot use {used} of {experts} experts")
    return layers, experts, used


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
