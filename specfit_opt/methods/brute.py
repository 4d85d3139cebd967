"""Enumeration of every ancestor-closed set: the oracle for small trees."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from ..checks import Whole
from ..errors import InvalidInputError
from ..expert_union import expert_prices, used_experts
from ..instance import Instance
from ..kernel import interrupt
from ..solution import Solution, Status, build_solution
from ._sizes import allowed_sizes
from .method import Method

#: Most non-root nodes that ``max_tree`` may be raised to: 2^26 sets take 256 MiB.
LARGEST = 26

# Objectives this close together, relative to the terms they are made of, count as equal.
_TIE = 1e-12
# Numbers per block of the enumeration; bounds the memory to some tens of megabytes.
_BLOCK = 1 << 22


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    max_tree: int = 22,
) -> Solution:
    """Evaluate every ancestor-closed set of an allowed size and return the best.

    Parameters
    ----------
    max_tree : int
        Refuse trees with more non-root nodes than this; 0 to 26. m of them can have 2^m closed
        sets.

    Returns
    -------
    Solution
        Status OPTIMAL; past ``time_limit`` the best set so far, FEASIBLE and without a bound. Among
        sets whose objectives agree to 1e-12, the one with the fewest nodes, and among those the one
        whose ascending list of nodes is lexicographically smallest.

    Raises
    ------
    InvalidInputError
        If the tree has more than ``max_tree`` non-root nodes, or the option is out of range.

    Notes
    -----
    O(2^m (m + u)) time for m non-root nodes and u distinct sets of users of an expert. It shares
    no step with the exact method: no ratio iteration, no cut, no packed rows.
    """
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit
    max_tree = Whole(0, LARGEST)(max_tree, "option max_tree")
    tree = instance.tree
    free = (tree.parent >= 0).nonzero()[0]
    if len(free) > max_tree:
        raise InvalidInputError(
            f"the tree has {len(free)} nodes besides its roots, too many to enumerate every "
            f"subtree (max_tree = {max_tree}); use method 'exact'"
        )
    allowed = allowed_sizes(instance, max_nodes)
    transfer = _transfer(instance, free)
    sets = _closed_sets(tree.parent, free)

    found_sets: list[NDArray[np.int32]] = []
    found_values: list[NDArray[np.float64]] = []
    best, scale = -math.inf, 0.0
    step = max(1, _BLOCK // (len(free) + len(transfer[1]) + 1))
    seen = 0
    for seen in range(0, len(sets), step):
        if best > -math.inf and time.perf_counter() > deadline:
            break
        interrupt.look_up()
        block = _of_allowed_size(sets[seen : seen + step], instance, allowed, free)
        if not len(block):
            continue
        value, terms = _evaluated(block, instance, rate, free, transfer)
        top = int(np.argmax(value))
        if value[top] > best:
            best, scale = float(value[top]), float(terms[top])
        close = value >= best - _TIE * scale
        found_sets.append(block[close])
        found_values.append(value[close])
    else:
        seen = len(sets)
    candidates = np.concatenate(found_sets)
    ties = candidates[np.concatenate(found_values) >= best - _TIE * scale]
    mask = tree.parent < 0
    mask[free[_first(ties, len(free))]] = True
    proven = seen == len(sets)
    return build_solution(
        instance,
        mask,
        rate=rate,
        method="brute",
        stats={"sets": seen},
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        bound=best if proven else None,
    )


def _closed_sets(parent: NDArray[np.int32], free: NDArray[np.int64]) -> NDArray[np.int32]:
    """List every closed set as a word: bit i is set when it holds ``free[i]``."""
    position = {int(v): i for i, v in enumerate(free)}
    sets = np.zeros(1, dtype=np.int32)
    for i, v in enumerate(free.tolist()):
        above = position.get(int(parent[v]))
        ready = sets if above is None else sets[sets >> above & 1 == 1]
        sets = np.concatenate((sets, ready | np.int32(1 << i)))
    return sets


def _of_allowed_size(
    sets: NDArray[np.int32], instance: Instance, allowed: NDArray[np.bool_], free: NDArray[np.int64]
) -> NDArray[np.int32]:
    size = instance.tree.n_roots + _members(sets, len(free)).sum(axis=1)
    fitting: NDArray[np.int32] = sets[allowed[size]]
    return fitting


def _members(sets: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """Return sets of ``n`` nodes as rows of 0 and 1."""
    members: NDArray[np.int32] = sets[:, None] >> np.arange(n, dtype=np.int32) & 1
    return members


def _evaluated(
    sets: NDArray[np.int32],
    instance: Instance,
    rate: float | None,
    free: NDArray[np.int64],
    transfer: tuple[float, NDArray[np.int32], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each set's objective, and the sum of the terms that it is made of."""
    tree, cost = instance.tree, instance.cost_model
    base, users, price = transfer
    member = _members(sets, len(free))
    tokens = tree.n_roots + member @ tree.path_prob[free]
    table = cost.node_table(tree.n_nodes)
    loading = base + ((sets[:, None] & users) != 0) @ price
    cycle = cost.fixed_time + table[tree.n_roots + member.sum(axis=1)] + loading
    if rate is None:
        return tokens / cycle, tokens / cycle
    return tokens - rate * cycle, tokens + rate * cycle


def _transfer(
    instance: Instance, free: NDArray[np.int64]
) -> tuple[float, NDArray[np.int32], NDArray[np.float64]]:
    """Return the price of what the roots use, and the other experts merged by their users."""
    used, price = used_experts(instance.routing), expert_prices(instance)
    by_roots = used[instance.tree.roots].any(axis=0)
    words = (np.int64(1) << np.arange(len(free), dtype=np.int64)) @ used[free]
    users, where = np.unique(words[~by_roots], return_inverse=True)
    merged = np.bincount(where, weights=price[~by_roots], minlength=len(users))
    kept = (users != 0) & (merged > 0.0)
    return float(price[by_roots].sum()), users[kept].astype(np.int32), merged[kept]


def _first(sets: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """Return the bits of the set with the fewest, lexicographically smallest among equals."""
    member = _members(sets, n)
    size = member.sum(axis=1)
    member = member[size == size.min()]
    # Of two sets of one size, the smaller is the one that holds the first node they differ in:
    # the larger number when the first node is the highest digit.
    rank = member @ (np.int64(1) << np.arange(n, dtype=np.int64)[::-1])
    first: NDArray[np.int64] = member[int(np.argmax(rank))].nonzero()[0]
    return first


METHOD = Method(
    name="brute",
    select=select,
    summary="enumeration of all subtrees, for small trees",
    source="by definition of the objective",
    proves=True,
)
