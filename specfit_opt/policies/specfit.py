"""The project's own rule: charge what the text does not need anyway, and never lose for long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Anything, Maybe, checked
from ..control.first_level import FirstLevel
from ..control.load_repayment import LoadRepayment
from ..control.plain_guard import PlainGuard, UnneededLoads
from ..control.waste_bias import WasteBias
from ..schema import Record
from .drafting import DraftShape, for_sizes
from .level_search import LevelSearch, load_time
from .policy import Choice, Outcome, Policy, PolicyKind
from .view import DraftView

#: What `SpecFitPolicy.to_state` gives; each part checks its own.
_STATE = Record(
    {
        **dict.fromkeys(("bias", "first_level", "repayment"), Anything()),
        "guard": Maybe(Anything()),
    }
)


class SpecFitPolicy(Policy):
    """Choose exactly after every level, and draft as long as the next one is expected to pay.

    Parameters
    ----------
    levels, top_k, width : int
        Most levels to draft, children of each expanded node, and nodes expanded per level.
    guard : bool
        Hold speculation to what plain decoding would have taken, see Notes.

    Attributes
    ----------
    repayment : LoadRepayment or None
        What it has learned of loads for rejected nodes; None before the first cycle.
    bias : WasteBias
        What rejected nodes were seen to load beyond the prediction.
    guard : PlainGuard or None

    Raises
    ------
    InvalidInputError
        If a number is not a positive integer.

    Notes
    -----
    **Objective.** The ratio of the pass (policy ``ratio``) charges it for every expert that it
    loads. But plain decoding has to load the experts of the text's tokens too. Here an expert is
    charged only with the probability that no committed token uses it (``waste_share`` of
    :class:`specfit_opt.TreeSearch`), and a rejected node with what such nodes were seen to load
    beyond the prediction (`WasteBias`); the ratio of tokens to seconds so counted is maximised
    exactly. A load for a rejected node is repaid if the text comes to use the expert before it is
    evicted, less what is evicted for it; how often that is so is learned per layer
    (`LoadRepayment`), and the rest is charged. The charge per rejected node enters as one per node:
    ``P / (T + beta (n - P))`` and ``P / (T + beta n)`` have the same maximiser, because the
    reciprocals differ by beta.

    **Stopping.** Before each level it is asked whether one more is expected to win at the
    acceptance seen so far (:meth:`specfit_opt.TreeSearch.advise`).

    **Drafting nothing.** Before the first level nothing is known of a position but its root, so
    there the expected rule takes the child to cause no loads (`FirstLevel`), and what speculation
    brought so far decides: a guard runs plain decoding of the same tokens beside the real thing, on
    the routing that verification shows and a cache of its own (`PlainGuard`). Speculation may lose
    a pass and a half of plain decoding beside what it gained in the last cycles; once it has,
    nothing is drafted for a while, and for ever longer after tries that fail (`SpeculationBudget`).
    """

    name = "specfit"

    def __init__(
        self, *, levels: int = 6, top_k: int = 4, width: int = 4, guard: bool = True
    ) -> None:
        self.shape = DraftShape(levels, top_k, width)
        self.guard = PlainGuard() if guard else None
        self.bias = WasteBias()
        self._first_level = FirstLevel()
        self.repayment: LoadRepayment | None = None
        self._share: NDArray[np.float64] = np.ones(0)
        self._drafting = 0.0  # the price of the levels of this cycle
        self._search: LevelSearch | None = None

    def fresh(self) -> Policy:
        """Return the policy without what it has learned."""
        shape = self.shape
        return type(self)(
            levels=shape.levels,
            top_k=shape.top_k,
            width=shape.width,
            guard=self.guard is not None,
        )

    def start(self) -> None:
        """Begin another text."""
        if self.guard is not None:
            self.guard.start()
        if self.repayment is not None:
            self.repayment.start()

    def to_state(self) -> dict[str, Any] | None:
        """Return what was learned of waste, repayment and the guard; None before any cycle."""
        if self.repayment is None:
            return None
        return {
            "bias": self.bias.to_state(),
            "first_level": self._first_level.to_state(),
            "guard": None if self.guard is None else self.guard.to_state(),
            "repayment": self.repayment.to_state(),
        }

    def from_state(self, state: Mapping[str, Any], n_layers: int, n_experts: int) -> None:
        """See :meth:`Policy.from_state`."""
        kept = checked(state, _STATE, "policy")
        repayment, bias = LoadRepayment(n_layers, n_experts), WasteBias()
        repayment.from_state(kept["repayment"])
        bias.from_state(kept["bias"])
        first_level = FirstLevel()
        first_level.from_state(kept["first_level"])
        if self.guard is not None and kept["guard"] is not None:
            self.guard.from_state(kept["guard"])
        self.repayment, self.bias, self._first_level = repayment, bias, first_level

    def choose(self, view: DraftView) -> Choice:
        """Return the best subtree of the levels that were drafted."""
        self._search = None
        self._drafting = 0.0
        if self.repayment is None:
            self.repayment = LoadRepayment(*view.resident.shape)
        self.repayment.look(view.resident)
        self._share = self.repayment.share(view.slots)
        plain = Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0)
        if self.guard is not None:
            self.guard.look(view)
            if not self.guard.allows:
                return plain
        # One table of node times, long enough for all levels.
        cost = for_sizes(view.cost_model, self.shape.most_nodes)
        if not self._first_level.wanted(view, cost):
            return plain
        self.bias.expect(load_time(cost.expert_time, view.resident, view.experts()[:1]))
        # What rejected nodes load beyond the prediction is repaid as the rest is.
        charge = self.bias.seconds * float(self._share.mean())
        search = LevelSearch(view, cost, waste_share=self._share, node_charge=charge)
        self._grow(view, search)
        self._search = search
        return search.choice()

    def observe(self, outcome: Outcome) -> None:
        """Learn what was loaded for rejected nodes, and whether speculation pays."""
        rows = np.searchsorted(outcome.choice.nodes, outcome.accepted)
        assert self.repayment is not None  # choose comes first
        self.repayment.learn(outcome.experts, rows, outcome.misses)
        if self.guard is not None:
            unneeded = UnneededLoads(self.repayment.unused, 1.0 - self._share)
            self.guard.learn(outcome, self._drafting, unneeded)
        search = self._search
        if search is None or not outcome.levels:
            return
        if len(outcome.choice.nodes) == 1:
            self.bias.fade()
            return
        wasted = search.realised_load_time(outcome.experts)
        wasted -= search.realised_load_time(outcome.experts[rows])
        rejected = len(outcome.choice.nodes) - search.solution.expected_tokens
        self.bias.learn(wasted - search.waste_time(outcome.choice.nodes), rejected)

    def _grow(self, view: DraftView, search: LevelSearch) -> None:
        """Draft while another level is expected to win; the first one is decided."""
        while view.levels < min(self.shape.levels, view.max_levels):
            if view.levels and not search.expects_gain():
                break
            level_time = view.level_time
            if not view.grow(self.shape.top_k, self.shape.width):
                break
            self._drafting += level_time
            search.extend()
        if not search.n_nodes:
            search.extend()


KIND = PolicyKind(
    name="specfit",
    make=SpecFitPolicy,
    summary="exact choice after each level, drafting as long as it is expected to pay",
    source="SpecFit (arXiv 2610.15417); sections on stopping and on the long run of the theory "
    "page",
)
