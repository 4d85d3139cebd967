"""A tree of fixed size."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from specfit_opt.solve import solve_instance

from ._pool import draft, drafted_tree, without_routing
from .registry import Choice, DraftView, Policy, PolicyKind, positive


class Eagle(Policy):
    """Draft all levels and verify the ``size`` nodes of highest path probability.

    Parameters
    ----------
    size : int
        Nodes of the pass, the root included. A smaller pool is verified whole.
    levels, top_k, width : int
        Levels drafted, children of each expanded node, and nodes expanded per level.

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.

    Notes
    -----
    The rerank is on the drafter's own probabilities, in double precision, and closed under
    ancestors: the earlier node comes first among equals.
    """

    priced = False
    predicts = False

    def __init__(
        self, size: int = 60, *, levels: int = 6, top_k: int = 10, width: int = 10
    ) -> None:
        self.size = positive(size, "the size of an EAGLE tree")
        self.levels = positive(levels, "levels")
        self.top_k = positive(top_k, "top_k")
        self.width = positive(width, "width")
        self.name = f"eagle-{self.size}"

    def choose(self, view: DraftView) -> Choice:
        """Return the tree."""
        draft(view, self.levels, self.top_k, self.width)
        began = perf_counter()
        instance = without_routing(drafted_tree(view))
        nodes = solve_instance(instance, method="eagle", budget=self.size).nodes
        tokens = float(view.path_prob[nodes].sum())
        return Choice(nodes, expected_tokens=tokens, search_seconds=perf_counter() - began)


def _make(number: int | None, **options: Any) -> Policy:
    assert number is not None  # the kind has a default
    return Eagle(number, **options)


KIND = PolicyKind(
    name="eagle-N",
    make=_make,
    summary="the N likeliest nodes; all levels drafted",
    source="EAGLE-2 (arXiv 2406.16858), EAGLE-3 (arXiv 2503.01840)",
    default=60,
)
