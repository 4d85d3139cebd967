"""What a prediction does to the decision: the chosen subtree at the price that it really has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, ExpertRouting, evaluate, solve
from specfit_opt.files import Trace
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay.caches import get_cache
from specfit_opt.replay.pool import Pool

from ..expert_union import expert_union


@dataclass(frozen=True)
class DecisionQuality:
    """The throughput of what was chosen, as a share of the best there was.

    Attributes
    ----------
    profile : str
        The machine.
    slots : int
        Experts per layer that the cache holds.
    cycles : int
        Counted passes.
    share : float
        Geometric mean over the passes of: throughput of the subtree chosen by the prediction, under
        true routing, over that of the best subtree under true routing.
    worst_decile : float
        The share that nine passes of ten exceed.
    misses : float
        Misses that were predicted for the chosen subtrees, as a share of those that occurred; NaN
        where none did.
    """

    profile: str
    slots: int
    cycles: int
    share: float
    worst_decile: float
    misses: float


def decision_quality(
    trace: Trace,
    predicted: NDArray[np.integer],
    machine: HardwareProfile,
    cost: CostModel,
    slots: int,
    warmup: int,
) -> DecisionQuality:
    """Walk a trace with the choices that the prediction leads to.

    Per position the exact optimum for the predicted routing is chosen from the whole pool, all of
    its levels drafted. The cache (LRU, empty at the start of a prompt) runs what the choice truly
    uses, and the walk goes on behind the tokens that it emits; see `specfit_opt.replay`.

    Parameters
    ----------
    trace : Trace
    predicted : ndarray of int, shape (N, L, k)
    machine : HardwareProfile
    cost : CostModel
        Of a pass without drafting, on that machine.
    slots : int
    warmup : int
        Positions at the start of each prompt that are decoded plainly and not counted.
    """
    shares: list[float] = []
    expected = occurred = 0
    for first, end in trace.prompts:
        cache = get_cache("lru").make(trace.n_layers, trace.n_experts, slots)
        at = first
        while at < end:
            cycle = trace.cycle(at)
            pool = Pool.of(cycle)
            if at - first < warmup:
                cache.use(pool.used(pool.tree.parent < 0))
                at += 1
                continue
            resident = cache.resident
            here = cost.with_fixed_time(cost.fixed_time + machine.draft_time * pool.n_levels)
            guess = predicted[slice(*trace.cycle_start[at : at + 2].tolist())]
            true = cycle.routing.with_resident(resident)
            chosen = solve(pool.tree, ExpertRouting(guess, trace.n_experts, resident), here)
            got = evaluate(pool.tree, true, here, chosen.nodes)
            best = solve(pool.tree, true, here)
            shares.append(got.throughput / best.throughput)
            wanted = expert_union(guess[chosen.mask], trace.n_experts)
            expected += int(np.count_nonzero(wanted & ~resident))
            occurred += int(np.count_nonzero(cache.use(pool.used(chosen.mask))))
            at += pool.emitted(chosen.mask)
    return DecisionQuality(
        profile=machine.name,
        slots=slots,
        cycles=len(shares),
        share=float(np.exp(np.mean(np.log(shares)))) if shares else float("nan"),
        worst_decile=float(np.quantile(shares, 0.1)) if shares else float("nan"),
        misses=expected / occurred if occurred else float("nan"),
    )
