"""A tree of fixed size."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidInputError
from ..pool import Pool
from .registry import Choice, PassState, Policy, PolicyKind, positive


class Eagle(Policy):
    """Take the ``size`` nodes of highest path probability, root included, all levels drafted.

    The earlier node goes first among equals. A smaller pool is taken whole.
    """

    fixed = True

    def __init__(self, size: int) -> None:
        self.size = size
        self.name = f"eagle-{size}"

    def check(self, n_levels: int, n_nodes: int) -> None:
        """Raise InvalidInputError if no pool has as many nodes."""
        if self.size > n_nodes:
            raise InvalidInputError(
                f"policy {self.name} needs {self.size} nodes but the trace's pools have {n_nodes}; "
                "use a smaller tree"
            )

    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return the tree."""
        mask = np.zeros(pool.tree.n_nodes, dtype=np.bool_)
        mask[pool.tree.prefix_order()[: self.size]] = True
        return Choice(mask, pool.n_levels)


def _make(number: int | None, objective: str) -> Policy:
    return Eagle(positive(number, "eagle"))


KIND = PolicyKind(
    name="eagle-N",
    make=_make,
    summary="the N likeliest nodes; all levels drafted",
    source="EAGLE-2 (arXiv 2406.16858), EAGLE-3 (arXiv 2503.01840); reference semantics",
)
