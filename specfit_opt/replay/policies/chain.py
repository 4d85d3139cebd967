"""A chain of fixed length."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidInputError
from ..pool import Pool
from .registry import Choice, PassState, Policy, PolicyKind, positive


class Chain(Policy):
    """Take the child of highest path probability ``length`` times, the earlier one among equals.

    ``length`` levels are charged. Where the pool gave a node of the chain no children, the chain
    ends early.
    """

    fixed = True

    def __init__(self, length: int) -> None:
        self.length = length
        self.name = f"chain-{length}"

    def check(self, n_levels: int, n_nodes: int) -> None:
        """Raise InvalidInputError if no pool is as deep as the chain is long."""
        if self.length > n_levels:
            raise InvalidInputError(
                f"policy {self.name} needs {self.length} levels but the trace's pools have "
                f"{n_levels}; use a shorter chain"
            )

    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return the chain."""
        tree = pool.tree
        mask = np.zeros(tree.n_nodes, dtype=np.bool_)
        node = int(tree.roots[0])
        mask[node] = True
        for _ in range(self.length):
            children = tree.children[node]
            if not children:
                break
            node = max(children, key=tree.path_prob.__getitem__)
            mask[node] = True
        return Choice(mask, min(self.length, pool.n_levels))


def _make(number: int | None, objective: str) -> Policy:
    return Chain(positive(number, "chain"))


KIND = PolicyKind(
    name="chain-K",
    make=_make,
    summary="the likeliest chain of K tokens; K levels drafted",
    source="reference semantics of the trace format",
)
