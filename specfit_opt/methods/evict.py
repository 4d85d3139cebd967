"""The best prefix in path-probability order when the pass time is known by size only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays import float_array
from ..errors import InvalidInputError
from ..expert_union import expert_prices, used_experts
from ..instance import Instance
from ..limits import LEAST_PASS, MOST_SECONDS
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, mask_of
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    pass_time: ArrayLike | None = None,
) -> Solution:
    """Return the prefix with the most expected tokens per mean pass time of its size.

    The nodes are ranked by path probability, and the m first are kept that maximise
    ``P(m) / C(m)``: C is the mean time of a pass over m nodes, whichever they are. At a given
    ``rate`` they maximise ``P(m) - rate * C(m)``.

    Parameters
    ----------
    instance, rate, max_nodes, time_limit
        As for :func:`specfit_opt.solve`; ``time_limit`` is not needed.
    pass_time : array_like of float, shape (m,), optional
        C in seconds, indexed by node count, roots included, m >= n + 1; entry 0 is not used. This
        is the profile that the paper measures. :func:`mean_pass_time` when omitted.

    Returns
    -------
    Solution
        The shortest prefix among equals. Only allowed sizes are considered.

    Raises
    ------
    InvalidInputError
        If ``pass_time`` is too short, or an entry that counts is not from 1e-12 to 1e12 seconds.

    Notes
    -----
    O(n^2 + n L E) time. The rule of EVICT (arXiv 2605.00342): blind to which experts a node uses.
    """
    tree = instance.tree
    sizes = allowed_sizes(instance, max_nodes).nonzero()[0]
    if pass_time is None:
        time = mean_pass_time(instance)
    else:
        time = _checked_pass_time(pass_time, tree.n_nodes, sizes)
    order = tree.prefix_order()
    tokens = np.concatenate(([0.0], np.cumsum(tree.path_prob[order])))[sizes]
    value = tokens / time[sizes] if rate is None else tokens - rate * time[sizes]
    size = int(sizes[np.argmax(value)])
    return build_solution(
        instance,
        mask_of(instance, order[:size]),
        rate=rate,
        method="evict",
        stats={"pass_time": "estimated" if pass_time is None else "given"},
    )


def mean_pass_time(instance: Instance) -> NDArray[np.float64]:
    """Return the pass time by size, averaged over all sets of that size.

    A profile of a machine averages over what it happened to verify. Without one, this averages
    over the instance itself: all sets of m of the n nodes, closed or not, each equally likely.
    An expert with u users among the nodes is then in the union with probability
    ``1 - C(n - u, m) / C(n, m)``, which is exact; nothing is assumed about experts being
    independent, and the last entry is the time of the whole tree.

    Parameters
    ----------
    instance : Instance

    Returns
    -------
    ndarray of float64, shape (n + 1,)
        Seconds; entry 0 is not used. Infinite where ``node_time`` is.

    Notes
    -----
    O(n^2 + n L E) time.
    """
    n = instance.tree.n_nodes
    users = used_experts(instance.routing).sum(axis=0)
    price = np.bincount(users, weights=expert_prices(instance), minlength=n + 1)
    transfer = np.zeros(n + 1)
    # unused[u] = C(n - u, m) / C(n, m), from one m to the next.
    unused = np.ones(n + 1)
    left = n - np.arange(n + 1)
    for m in range(1, n + 1):
        unused *= np.maximum(left - (m - 1), 0) / (n - (m - 1))
        transfer[m] = price @ (1.0 - unused)
    cost = instance.cost_model
    return cost.fixed_time + cost.node_table(n) + transfer


def _checked_pass_time(
    value: ArrayLike, n_nodes: int, sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    time = float_array(value, "option pass_time")
    if time.ndim != 1 or len(time) < n_nodes + 1:
        raise InvalidInputError(
            f"option pass_time has shape {time.shape} but the tree has {n_nodes} nodes; it is "
            f"indexed by node count and needs at least {n_nodes + 1} entries"
        )
    bad = sizes[~((time[sizes] >= LEAST_PASS) & (time[sizes] <= MOST_SECONDS))]
    if bad.size:
        raise InvalidInputError(
            f"option pass_time[{bad[0]}] = {time[bad[0]]}; the time of every allowed size must be "
            f"positive and finite, from {LEAST_PASS:g} to {MOST_SECONDS:g} seconds"
        )
    return time


METHOD = Method(
    name="evict",
    select=select,
    summary="best prefix by path probability, pass time known by size only",
    source="EVICT, arXiv 2605.00342",
)
