"""EcoSpec: a fixed number of nodes by path probability over newly activated experts."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from specfit_opt.solve import solve_instance

from ._pool import draft, drafted_tree, with_routing
from .registry import Choice, DraftView, Policy, PolicyKind, positive


class EcoSpec(Policy):
    """Draft three levels of two and add four nodes by probability per newly activated expert.

    Parameters
    ----------
    budget : int
        Nodes added to the root.
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level. The defaults,
        like that of ``budget``, are the published ones.

    Raises
    ------
    InvalidInputError
        If an option is out of range.

    Notes
    -----
    The published system predicts routing with networks trained for it; here it sees what the
    decode's own predictor predicts.
    """

    priced = False

    def __init__(
        self,
        *,
        budget: int = 4,
        levels: int = 3,
        top_k: int = 2,
        width: int = 2,
    ) -> None:
        self.budget = positive(budget, "budget")
        self.levels = positive(levels, "levels")
        self.top_k = positive(top_k, "top_k")
        self.width = positive(width, "width")
        self.name = "ecospec"

    def choose(self, view: DraftView) -> Choice:
        """Return the nodes."""
        draft(view, self.levels, self.top_k, self.width)
        view.experts()  # predicting is not searching
        began = perf_counter()
        solution = solve_instance(
            with_routing(view, drafted_tree(view)),
            method="ecospec",
            budget=self.budget,
        )
        return Choice(
            solution.nodes,
            expected_tokens=float(view.path_prob[solution.nodes].sum()),
            predicted_misses=solution.experts_loaded.astype(np.int64),
            search_seconds=perf_counter() - began,
        )


def _make(number: int | None, **options: Any) -> Policy:
    return EcoSpec(**options)


KIND = PolicyKind(
    name="ecospec",
    make=_make,
    summary="path probability per newly activated expert, four nodes",
    source="EcoSpec, arXiv 2607.12696",
)
