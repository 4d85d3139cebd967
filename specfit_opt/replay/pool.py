"""One recorded position: the pool that its drafter grew and what the target made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..files import TraceCycle
from ..routing import ExpertRouting
from ..tree import DraftTree


@dataclass(frozen=True, eq=False)
class Pool:
    """The candidate pool of one position.

    Attributes
    ----------
    tree : DraftTree
        All candidates, one root.
    routing : ExpertRouting
        Recorded routing of all candidates; nothing resident.
    accepted : ndarray of bool, shape (n,)
        Nodes on the target's greedy path: one path from the root.
    expanded : ndarray of bool, shape (n,)
        Nodes that the drafter gave children.
    levels : tuple of ndarray of int64
        The nodes of each depth, root first.
    """

    tree: DraftTree
    routing: ExpertRouting
    accepted: NDArray[np.bool_]
    expanded: NDArray[np.bool_]
    levels: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, cycle: TraceCycle) -> Pool:
        """Return the pool of a recorded cycle."""
        tree = cycle.tree
        expanded = np.zeros(tree.n_nodes, dtype=np.bool_)
        expanded[tree.parent[tree.parent >= 0]] = True
        levels = tuple(np.flatnonzero(tree.depth == d) for d in range(int(tree.depth.max()) + 1))
        return cls(tree, cycle.routing, cycle.accepted, expanded, levels)

    @property
    def n_levels(self) -> int:
        """Levels that were drafted, the root not counted."""
        return len(self.levels) - 1

    def emitted(self, mask: NDArray[np.bool_]) -> int:
        """Return the tokens that a pass over the closed ``mask`` commits, the bonus included."""
        return int(np.count_nonzero(mask & self.accepted))

    def used(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the union of the experts of ``mask``'s nodes, shape (L, E)."""
        return self.routing.union(mask)
