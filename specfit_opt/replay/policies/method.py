"""A selection method on the whole pool."""

from __future__ import annotations

from typing import Any

from ...instance import Instance
from ...methods import Method
from ...solve import solve_instance
from ..pool import Pool
from .registry import Choice, PassState, Policy, PolicyKind


class MethodPolicy(Policy):
    """Draft all levels, then let a method of :data:`specfit_opt.METHODS` choose the subtree.

    It sees the recorded routing, what is resident, and a cost model whose ``fixed_time`` holds the
    time of the drafting.

    Parameters
    ----------
    method : str
        Registered name.
    objective : str
        ``"ratio"``, or ``"surplus"`` at the running rate (the first counted pass, which has no
        rate yet, maximises the ratio).
    **options
        Passed to the method.
    """

    def __init__(self, method: str, objective: str = "ratio", **options: Any) -> None:
        self.method = method
        self.objective = objective
        self.options = options
        self.name = method + ("-surplus" if objective == "surplus" else "")

    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return the method's subtree of the whole pool."""
        levels = pool.n_levels
        cost = state.cost_model
        instance = Instance(
            pool.tree,
            pool.routing.with_resident(state.resident),
            cost.with_fixed_time(cost.fixed_time + levels * state.draft_time),
        )
        rate = state.rate if self.objective == "surplus" else None
        solution = solve_instance(instance, method=self.method, rate=rate, **self.options)
        return Choice(solution.mask, levels)


def kind_of(method: Method) -> PolicyKind:
    """Return the registry entry of the policy that uses ``method``."""

    def make(number: int | None, objective: str) -> Policy:
        return MethodPolicy(method.name, objective)

    return PolicyKind(
        name=method.name,
        make=make,
        summary=f"{method.summary}; all levels drafted",
        source=method.source,
        takes_objective=True,
    )
