"""The selection methods: one file and one entry here each."""

from __future__ import annotations

from ..registry import Registry
from . import brute, chain, eagle, ecospec, evict, exact, greedy, mip, root, s2moe
from .method import Method

#: Every method by name: ``METHODS.register(Method(...))`` adds one of your own, which
#: :class:`Method` shows. ``solve``, the replay, the command line and the test matrix read this.
METHODS: Registry[Method] = Registry(
    "method",
    (
        module.METHOD
        for module in (exact, mip, brute, greedy, eagle, evict, ecospec, s2moe, chain, root)
    ),
)

__all__ = ["METHODS", "Method"]
