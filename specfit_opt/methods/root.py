"""The roots alone: plain autoregressive decoding."""

from __future__ import annotations

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
) -> Solution:
    """Return the roots: no speculation, one token per sequence and pass.

    Where the roots alone are a forbidden size, the nodes of highest path probability are added up
    to the smallest size that is allowed. ``time_limit`` is not needed.
    """
    tree = instance.tree
    size = nearest_allowed(allowed_sizes(instance, max_nodes), tree.n_roots)
    mask = mask_of(instance, tree.prefix_order()[:size])
    return build_solution(instance, mask, rate=rate, method="root", stats={})


METHOD = Method(
    name="root",
    select=select,
    summary="the roots alone: plain decoding",
    source="autoregressive decoding; no speculation",
)
