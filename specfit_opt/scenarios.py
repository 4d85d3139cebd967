"""Scenarios of uncertain routing, drawn from the probability that each node uses each expert."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import float_array
from .checks import Real, Whole
from .errors import InvalidInputError
from .limits import check_size


def sample_scenarios(
    probabilities: ArrayLike,
    k: int,
    n_scenarios: int,
    *,
    seed: int | np.random.Generator,
    shared: float = 0.7,
) -> NDArray[np.int32]:
    """Draw scenarios in which every node uses k experts per layer.

    Parameters
    ----------
    probabilities : array_like of float, shape (n, L, E)
        Probability that the node uses each expert. The rows of a router's top k add up to k.
    k : int
        Experts per node and layer, 1 to E.
    n_scenarios : int
        M, at least 1.
    seed : int or numpy.random.Generator
        Equal seeds give equal scenarios, and more of them begin with the same ones.
    shared : float
        How much the nodes of a scenario have in common: for each layer and expert, a node takes
        the scenario's random number with this probability and one of its own otherwise. 1: nodes
        are *comonotone*, those of equal probabilities use the same experts; 0: independent.

    Returns
    -------
    ndarray of int32, shape (M, n, L, k)
        For :meth:`ExpertRouting.from_scenarios`. Ascending; -1 pads where fewer than k experts have
        a positive probability.

    Raises
    ------
    InvalidInputError
        For a probability that is NaN or outside [0, 1], another shape, or another argument that is
        out of range.

    Notes
    -----
    Pareto sampling: expert e of probability q gets the key ``logit(q) - logit(u)``, u uniform, and
    the k largest keys are drawn. Experts of probability 1 are always in, those of 0 never, and the
    others with a probability close to q if the row adds up to k (Rosén 1997). Random numbers that
    several samples share are the "permanent" ones by which surveys are coordinated (Ohlsson 1998).

    What the probabilities do not tell is how the nodes hang together, and the union depends on it:
    an expert that two nodes use with probability q each is in their union with probability q if
    they are comonotone and ``1 - (1 - q)**2`` if they are independent. Comonotone nodes make the
    smallest union, and a node that is predicted as another one is then free, which is as
    overconfident as the most likely experts are; :ref:`measured <uncertain-routing>`. O(M n L E)
    time.

    References
    ----------
    .. [1] B. Rosén, "On sampling with probability proportional to size", Journal of Statistical
       Planning and Inference 62(2), 1997.
    .. [2] E. Ohlsson, "Sequential Poisson sampling", Journal of Official Statistics 14(2), 1998.

    Examples
    --------
    >>> sample_scenarios([[[1.0, 0.5, 0.5, 0.0]]], 2, 3, seed=0)[:, 0, 0, 0].tolist()
    [0, 0, 0]
    """
    probability = _checked_probabilities(probabilities)
    n, n_layers, n_experts = probability.shape
    k = Whole(1)(k, "k")
    if k > n_experts:
        raise InvalidInputError(f"a node cannot use k = {k} of {n_experts} experts")
    n_scenarios = Whole(1)(n_scenarios, "n_scenarios")
    check_size(n, n_layers, n_experts, n_scenarios)
    shared = Real(most=1.0)(shared, "shared")
    rng = np.random.default_rng(seed)
    # Single precision halves the time, and what it rounds is far below what M draws resolve.
    odds = _log_odds(probability).astype(np.float32)
    drawn = np.empty((n_scenarios, n, n_layers, k), dtype=np.int32)
    for scenario in drawn:
        u = _uniform(rng, (n_layers, n_experts))
        if shared < 1.0:
            own = _uniform(rng, odds.shape)
            u = np.where(rng.random(odds.shape, dtype=np.float32) < shared, u, own)
        keys = _log_odds(u) - odds
        best = np.argpartition(keys, k - 1, axis=2)[:, :, :k]
        impossible = np.isposinf(np.take_along_axis(keys, best, axis=2))
        scenario[...] = np.sort(np.where(impossible, n_experts, best), axis=2)
    drawn[drawn == n_experts] = -1
    return drawn


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return random numbers inside (0, 1)."""
    # What is drawn are multiples of 2**-24 from 0 on; half a step keeps them off the ends.
    u: NDArray[np.float32] = rng.random(shape, dtype=np.float32)
    u += np.float32(2.0**-25)
    return np.minimum(u, np.float32(1.0 - 2.0**-24), out=u)


def _log_odds(probability: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(divide="ignore"):
        odds: NDArray[Any] = np.log(probability) - np.log1p(-probability)
    return odds


def _checked_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    probability = float_array(probabilities, "probabilities")
    if probability.ndim != 3 or 0 in probability.shape[1:]:
        raise InvalidInputError(
            f"probabilities must have shape (nodes, layers, experts), got {probability.shape}"
        )
    bad = np.argwhere(~((probability >= 0.0) & (probability <= 1.0)))
    if len(bad):
        v, layer, e = (int(i) for i in bad[0])
        raise InvalidInputError(
            f"probabilities[{v}, {layer}, {e}] = {probability[v, layer, e]} is no probability; it "
            "must be in [0, 1]"
        )
    return probability
