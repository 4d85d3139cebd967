"""Scenarios of uncertain routing, from the probability that each node uses each expert."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validate import float_array
from .errors import InvalidInputError

#: How the draws of the nodes of a scenario hang together.
COUPLINGS = ("comonotone", "independent")


def threshold_scenarios(probabilities: ArrayLike, n_scenarios: int) -> NDArray[np.int32]:
    """Return scenarios whose mean over a union is that of comonotone nodes, without any chance.

    Scenario m gives each node the experts whose probability exceeds ``(m + 1/2) / M``: the more
    demanding the threshold, the fewer experts.

    Parameters
    ----------
    probabilities : array_like of float, shape (n, L, E)
        Probability that the node uses each expert.
    n_scenarios : int
        M, at least 1.

    Returns
    -------
    ndarray of int32, shape (M, n, L, k)
        For :meth:`ExpertRouting.from_scenarios`. k is the largest number of experts above the
        first threshold; -1 pads.

    Raises
    ------
    InvalidInputError
        For a probability that is NaN or outside [0, 1], another shape, or no scenario.

    Notes
    -----
    A scenario is no possible routing: its nodes have more or fewer experts than a router picks. But
    the expected cost of a union is a sum over experts, so how the experts of one node hang together
    plays no part. If those of different nodes are comonotone (see :func:`sample_scenarios`), the
    union of S uses an expert with the largest probability among the nodes of S, and the scenarios
    round each of these to a multiple of 1/M: the error is at most 1/(2M) per expert, where M random
    scenarios have a standard deviation of up to 1/(2 sqrt(M)). O(n L E + M n L k) time.

    Examples
    --------
    >>> threshold_scenarios([[[0.9, 0.6, 0.4, 0.1]]], 2).tolist()
    [[[[0, 1, 2]]], [[[0, -1, -1]]]]
    """
    probability = _checked_probabilities(probabilities)
    n_scenarios = _checked_count(n_scenarios, "n_scenarios")
    thresholds = (np.arange(n_scenarios) + 0.5) / n_scenarios
    node, layer, expert = np.nonzero(probability > thresholds[0])
    n, n_layers, _ = probability.shape
    row = node * n_layers + layer
    counts = np.bincount(row, minlength=n * n_layers)
    most = int(counts.max(initial=0))
    slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.full((n * n_layers, most), -1, dtype=np.int32)
    ids[row, slot] = expert
    of_slot = np.zeros(ids.shape)
    of_slot[row, slot] = probability[node, layer, expert]
    chosen = np.where(of_slot > thresholds[:, None, None], ids, np.int32(-1))
    return chosen.reshape(n_scenarios, n, n_layers, most)


def sample_scenarios(
    probabilities: ArrayLike,
    k: int,
    n_scenarios: int,
    *,
    seed: int | np.random.Generator,
    coupling: str = "comonotone",
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
        Equal seeds give equal scenarios.
    coupling : {"comonotone", "independent"}
        ``"comonotone"``: the nodes of a scenario share their random numbers, so that nodes with
        equal probabilities use the same experts, and nodes with similar ones almost the same.
        ``"independent"``: each node has its own.

    Returns
    -------
    ndarray of int32, shape (M, n, L, k)
        For :meth:`ExpertRouting.from_scenarios`. -1 pads where fewer than k experts have a positive
        probability.

    Raises
    ------
    InvalidInputError
        For a probability that is NaN or outside [0, 1], another shape, or another argument that is
        out of range.

    Notes
    -----
    Pareto sampling: expert e of probability q gets the key ``logit(q) + logit(u)``, u uniform, and
    the k largest keys are drawn. Experts of probability 1 are always in, those of 0 never, and the
    others with a probability close to q if the row adds up to k (Rosén 1997). Shared u are the
    "permanent random numbers" of sample coordination (Ohlsson 1998).

    What the probabilities do not tell is how the nodes hang together, and the union depends on it:
    an expert that two nodes use with probability q each is in their union with probability q if
    they are comonotone and ``1 - (1 - q)**2`` if they are independent. The first is the least that
    a union can be; nodes whose tokens share a context have more in common than the second allows.
    Where only the cost of unions matters, :func:`threshold_scenarios` serves comonotone nodes
    better. O(M n L E) time. More scenarios of one seed begin with the same ones.

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
    k = _checked_count(k, "k")
    if k > n_experts:
        raise InvalidInputError(f"a node cannot use k = {k} of {n_experts} experts")
    n_scenarios = _checked_count(n_scenarios, "n_scenarios")
    if coupling not in COUPLINGS:
        raise InvalidInputError(f"coupling must be one of {', '.join(COUPLINGS)}, got {coupling!r}")
    rng = np.random.default_rng(seed)
    # Single precision halves the time, and what it rounds is far below what M draws resolve.
    appeal = _log_odds(probability).astype(np.float32)
    drawn = np.empty((n_scenarios, n, n_layers, k), dtype=np.int32)
    shape = (n_layers, n_experts) if coupling == "comonotone" else probability.shape
    for scenario in drawn:
        # Multiples of 2**-24 from 0; the half step keeps them inside (0, 1).
        u = rng.random(shape, dtype=np.float32) + np.float32(2.0**-25)
        keys = appeal + _log_odds(np.minimum(u, np.float32(1.0 - 2.0**-24)))
        best = np.argpartition(-keys, k - 1, axis=2)[:, :, :k]
        impossible = np.isneginf(np.take_along_axis(keys, best, axis=2))
        scenario[...] = np.sort(np.where(impossible, n_experts, best), axis=2)
    drawn[drawn == n_experts] = -1
    return drawn


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


def _checked_count(value: int, name: str) -> int:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not whole or value < 1:
        raise InvalidInputError(f"{name} must be a positive integer, got {value!r}")
    return int(value)
