"""The fixed-size tree of EAGLE: the top-N nodes by path probability."""

from __future__ import annotations

from ..checks import Whole
from ..instance import Instance
from ..solution import Solution, build_solution
from ._sizes import allowed_sizes, mask_of, nearest_allowed
from .method import Method


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    budget: int = 60,
) -> Solution:
    """Return the ``budget`` nodes of highest path probability.

    The rerank of EAGLE-2 (arXiv 2406.16858, section 4.2), which EAGLE-3 keeps. O(n log n) time.

    Parameters
    ----------
    budget : int
        Nodes of the pass, roots included, over all sequences of a forest; at least 1. The roots
        are always run, so a budget below their number selects the roots. 60 is the size of
        EAGLE-3's tree (arXiv 2503.01840).

    Returns
    -------
    Solution
        Among equal probabilities the earlier node comes first. A forbidden size is cut back to the
        largest allowed one below it; if there is none, the smallest allowed one is taken.

    Raises
    ------
    InvalidInputError
        If ``budget`` is not a positive integer.
    """
    budget = Whole(1)(budget, "option budget")
    tree = instance.tree
    size = nearest_allowed(allowed_sizes(instance, max_nodes), max(budget, tree.n_roots))
    mask = mask_of(instance, tree.prefix_order()[:size])
    return build_solution(instance, mask, rate=rate, method="eagle", stats={"budget": budget})


METHOD = Method(
    name="eagle",
    select=select,
    summary="top-N nodes by path probability, N fixed",
    source="EAGLE-2, arXiv 2406.16858, section 4.2; EAGLE-3, arXiv 2503.01840",
)
