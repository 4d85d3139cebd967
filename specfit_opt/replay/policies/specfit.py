"""Drafting level by level, with the exact choice after each and a rule that says when to stop."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidInputError
from ...search import TreeSearch
from ..pool import Pool
from .registry import Choice, PassState, Policy, PolicyKind, positive

#: The stop rules and what they do.
STOP_RULES = {
    "none": "draft every level",
    "naive": "stop once the best value has fallen",
    "certified": "stop when no continuation can win",
    "expected": "stop when the next level is not expected to win",
    "gain-share": "stop when the next level gains less than its share of the pass's tokens",
}


class SpecfitPolicy(Policy):
    """Grow a :class:`specfit_opt.TreeSearch` level by level; only drafted levels are charged.

    Parameters
    ----------
    rule : str
        When to stop drafting. ``"none"``: never. ``"naive"``: after the first level that lowers the
        best value. ``"certified"``: before a level if no continuation, however long, can beat what
        is in hand. ``"expected"``: as certified, and also if the next level is not expected to win
        at the acceptance seen so far. ``"gain-share"``: before a level if the tokens that it is
        expected to add to the best subtree so far are fewer than that subtree expects in the time
        that drafting the level takes.
    objective : str
        ``"ratio"``, or ``"surplus"`` at the running rate.
    levels : int, optional
        Most levels to draft; with the rule "none" a fixed depth, after which the policy is named.

    Notes
    -----
    Acceptance per depth is learned during the replay from what a real run sees too: whether the
    target's token after an accepted, expanded node was among the node's drafted children,
    (hits + 1) / (trials + 2).
    """

    def __init__(self, rule: str, objective: str = "ratio", levels: int | None = None) -> None:
        if rule not in STOP_RULES:
            raise InvalidInputError(
                f"stop rule {rule!r} is unknown; the rules are {', '.join(STOP_RULES)}"
            )
        self.rule = rule
        self.objective = objective
        self.levels = levels
        fixed = rule == "none" and levels is not None
        self.name = f"specfit-depth-{levels}" if fixed else f"specfit-{rule}"
        self.name += "-surplus" if objective == "surplus" else ""
        self._hits: list[int] = []
        self._trials: list[int] = []

    def fresh(self) -> Policy:
        """Return the policy without the acceptance that it has learned."""
        return SpecfitPolicy(self.rule, self.objective, self.levels)

    def check(self, n_levels: int, n_nodes: int) -> None:
        """Raise InvalidInputError if no pool is as deep as the policy may draft."""
        if self.levels is not None and self.levels > n_levels:
            raise InvalidInputError(
                f"policy {self.name} needs {self.levels} levels but the trace's pools have "
                f"{n_levels}; draft fewer"
            )

    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return the best subtree of the levels that the rule had drafted."""
        tree, routing = pool.tree, pool.routing
        rate = state.rate if self.objective == "surplus" else None
        search = TreeSearch(
            state.cost_model,
            routing.n_layers,
            routing.n_experts,
            resident=state.resident,
            rate=rate,
        )
        # The search numbers nodes level by level; the pool may not.
        number = np.full(tree.n_nodes + 1, -1, dtype=np.int32)
        order: list[int] = []
        drafted = 0
        last = pool.n_levels if self.levels is None else self.levels
        for level, nodes in enumerate(pool.levels[: last + 1]):
            if level and not self._goes_on(search, pool, state, level, last, number):
                break
            drafted = level
            number[nodes] = np.arange(len(order), len(order) + len(nodes), dtype=np.int32)
            order += nodes.tolist()
            before = search.solution.objective if level else -np.inf
            solution = search.extend(
                number[tree.parent[nodes]],
                tree.path_prob[nodes],
                routing.experts[nodes],
                draft_time=state.draft_time if level else 0.0,
            )
            if self.rule == "naive" and solution.objective < before:
                break
        mask = np.zeros(tree.n_nodes, dtype=np.bool_)
        mask[np.array(order)[search.solution.nodes]] = True
        return Choice(mask, drafted)

    def observe(self, pool: Pool, choice: Choice) -> None:
        """Count, per depth, how often a drafted child was the target's token."""
        if self.rule not in ("expected", "gain-share"):
            return
        reached = choice.mask & pool.accepted & pool.expanded
        for node in np.flatnonzero(reached):
            depth = int(pool.tree.depth[node]) + 1
            if depth > choice.levels:
                continue
            while len(self._trials) <= depth:
                self._trials.append(0)
                self._hits.append(0)
            self._trials[depth] += 1
            self._hits[depth] += any(pool.accepted[c] for c in pool.tree.children[node])

    def acceptance(self, n_levels: int) -> list[float]:
        """Return the probability, by child depth, that some child of an accepted node is."""
        trials = self._trials + [0] * (n_levels + 1 - len(self._trials))
        hits = self._hits + [0] * (n_levels + 1 - len(self._hits))
        return [(h + 1) / (t + 2) for h, t in zip(hits, trials, strict=True)]

    def _goes_on(
        self,
        search: TreeSearch,
        pool: Pool,
        state: PassState,
        level: int,
        last: int,
        number: np.ndarray,
    ) -> bool:
        if self.rule in ("none", "naive"):
            return True
        above = pool.levels[level - 1]
        expanded = above[pool.expanded[above]]
        frontier = number[expanded]
        if self.rule == "gain-share":
            solution = search.solution
            extended = expanded[solution.mask[frontier]]
            chance = self.acceptance(level)[level]
            gain = float(pool.tree.path_prob[extended].sum()) * chance
            share = solution.expected_tokens * state.draft_time / solution.cycle_time
            return gain >= share
        acceptance = self.acceptance(pool.n_levels) if self.rule == "expected" else None
        return search.advise(
            state.draft_time, acceptance, levels=last - level + 1, frontier=frontier
        ).go


def kind_of(rule: str) -> PolicyKind:
    """Return the registry entry of the stop rule ``rule``."""

    def make(number: int | None, objective: str) -> Policy:
        return SpecfitPolicy(rule, objective)

    return PolicyKind(
        name=f"specfit-{rule}",
        make=make,
        summary=f"exact choice level by level; {STOP_RULES[rule]}",
        source="SpecFit (arXiv 2610.15417); section on stopping of the theory page",
        takes_objective=True,
    )


def _make_depth(number: int | None, objective: str) -> Policy:
    return SpecfitPolicy("none", objective, positive(number, "specfit-depth"))


DEPTH = PolicyKind(
    name="specfit-depth-K",
    make=_make_depth,
    summary="exact choice from K drafted levels",
    source="SpecFit (arXiv 2610.15417); section on stopping of the theory page",
    takes_objective=True,
)
