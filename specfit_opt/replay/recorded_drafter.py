"""A drafter that drafts again what was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..files import TraceCycle
from ..policies.view import DraftLevel


class RecordedTree:
    """The tree of one recorded position, as a drafter gives it.

    Parameters
    ----------
    cycle : TraceCycle

    Attributes
    ----------
    cycle : TraceCycle
    parent, token : ndarray of int64, shape (n,)
    path_prob : ndarray of float64, shape (n,)
        The drafter's path probabilities.
    prob : ndarray of float64, shape (n,)
        The drafter's probability of each node given its parent; 1 for the root.
    expanded : ndarray of bool, shape (n,)
        Nodes that the drafter gave children.
    children : list of ndarray of int64
        Of each node, the most probable first and the earlier one among equals.
    levels : int
        Levels below the root.
    fixed : dict
        What fixed policies made of the tree, by policy and most levels: it is the same whatever
        the cache and the prices.
    """

    def __init__(self, cycle: TraceCycle) -> None:
        tree = cycle.tree
        self.cycle = cycle
        self.parent: NDArray[np.int64] = tree.parent.astype(np.int64)
        self.path_prob: NDArray[np.float64] = np.asarray(tree.path_prob)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.parent < 0, 1.0, self.path_prob / self.path_prob[self.parent])
        # Path probabilities are recorded in single precision; a quotient may exceed 1 by rounding.
        self.prob: NDArray[np.float64] = np.clip(np.nan_to_num(ratio), 0.0, 1.0)
        self.token: NDArray[np.int64] = cycle.token.astype(np.int64)
        self.expanded: NDArray[np.bool_] = np.zeros(len(self.parent), dtype=np.bool_)
        self.expanded[self.parent[self.parent >= 0]] = True
        prob = self.prob.tolist()
        self.children = [
            np.array(sorted(nodes, key=lambda node: -prob[node]), dtype=np.int64)
            for nodes in tree.children
        ]
        self.levels = int(tree.depth.max())
        self.fixed: dict[tuple[Any, int | None], Any] = {}


class RecordedDrafter:
    """Grows the recorded tree of one position, or the part of it that is asked for.

    Parameters
    ----------
    tree : RecordedTree
    limit : int, optional
        Most levels.

    Attributes
    ----------
    max_levels : int
    nodes : ndarray of int64, shape (n,)
        The recorded node behind each node of the tree grown so far, the root first.
    """

    def __init__(self, tree: RecordedTree, limit: int | None = None) -> None:
        self._tree = tree
        self.max_levels = tree.levels if limit is None else min(tree.levels, limit)
        self.begin()

    def root_state(self) -> Any:
        """Return the recorded state at the token before the root, shape (1, H_d).

        None before the first level, when a drafter has not run over that token, or if no states
        were recorded.
        """
        states = self._tree.cycle.states
        return None if states is None or len(self.nodes) == 1 else states[:1].astype(np.float32)

    def begin(self) -> None:
        """Start again at the root."""
        self.nodes = np.zeros(1, dtype=np.int64)
        self._expanded = np.zeros(1, dtype=np.int64)

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        """Return the next level, as a drafter does.

        Expanded next are, among the nodes that the recording expanded, those of highest recorded
        path probability.
        """
        tree = self._tree
        rows, parents = [], []
        for node in self._expanded.tolist():
            best = tree.children[self.nodes[node]][:top_k]
            rows.append(np.sort(best))
            parents.append(np.full(len(best), node, dtype=np.int64))
        new = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        if not new.size:
            return None
        first = len(self.nodes)
        self.nodes = np.concatenate([self.nodes, new])
        order = np.argsort(-tree.path_prob[new], kind="stable")
        order = order[tree.expanded[new[order]]][:width]
        self._expanded = first + order
        states = tree.cycle.states
        return DraftLevel(
            np.concatenate(parents),
            tree.token[new],
            tree.prob[new],
            self._expanded,
            # In single precision, as the drafters give them.
            None if states is None else states[new].astype(np.float32),
        )
