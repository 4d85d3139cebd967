"""A drafter that drafts again what was recorded."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt.files import TraceCycle

from ..drafters import DraftLevel


class RecordedDrafter:
    """Grows the recorded pool of one position, or the part of it that is asked for.

    Parameters
    ----------
    cycle : TraceCycle
    limit : int, optional
        Most levels.

    Attributes
    ----------
    max_levels : int
    nodes : ndarray of int64, shape (n,)
        The recorded node behind each node of the tree grown so far, the root first.
    """

    def __init__(self, cycle: TraceCycle, limit: int | None = None) -> None:
        tree = cycle.tree
        self._parent = tree.parent.astype(np.int64)
        self._path = np.asarray(tree.path_prob)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self._parent < 0, 1.0, self._path / self._path[self._parent])
        # Path probabilities are recorded in single precision; a quotient may exceed 1 by rounding.
        self._prob = np.clip(np.nan_to_num(ratio), 0.0, 1.0)
        self._token = cycle.token.astype(np.int64)
        # In single precision, as the drafters give them.
        self._states = None if cycle.states is None else torch.from_numpy(cycle.states.astype("f4"))
        self._has_children = np.zeros(len(self._parent), dtype=np.bool_)
        self._has_children[self._parent[self._parent >= 0]] = True
        depth = int(tree.depth.max())
        self.max_levels = depth if limit is None else min(depth, limit)
        self.begin()

    def root_state(self) -> Tensor | None:
        """Return the recorded state at the token before the root, shape (1, H_d).

        None before the first level, when a drafter has not run over that token, or if no states
        were recorded.
        """
        return None if self._states is None or len(self.nodes) == 1 else self._states[:1]

    def begin(self) -> None:
        """Start again at the root."""
        self.nodes = np.zeros(1, dtype=np.int64)
        self._expanded = np.zeros(1, dtype=np.int64)

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        """Return the next level, as :meth:`specfit_runtime.drafters.Drafter.level` does.

        Expanded next are, among the nodes that the recording expanded, those of highest recorded
        path probability.
        """
        rows, parents = [], []
        for node in self._expanded.tolist():
            children = np.flatnonzero(self._parent == self.nodes[node])
            best = children[np.argsort(-self._prob[children], kind="stable")[:top_k]]
            rows.append(np.sort(best))
            parents.append(np.full(len(best), node, dtype=np.int64))
        new = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        if not new.size:
            return None
        first = len(self.nodes)
        self.nodes = np.concatenate([self.nodes, new])
        order = np.argsort(-self._path[new], kind="stable")
        order = order[self._has_children[new[order]]][:width]
        self._expanded = first + order
        parent: NDArray[np.int64] = np.concatenate(parents)
        states = None if self._states is None else self._states[torch.from_numpy(new)]
        return DraftLevel(parent, self._token[new], self._prob[new], self._expanded, states)
