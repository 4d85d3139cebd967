"""What a prediction does to the decision: the chosen subtree at the price that it really has."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np

from specfit_opt import DraftTree, ExpertRouting, evaluate, solve
from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace
from specfit_opt.policies import Outcome, make_policy
from specfit_opt.replay import RecordedDecode, RecordedView, SimulatedMachine
from specfit_opt.routing_predictor import RoutingPredictor


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
    predictor: RoutingPredictor,
    machine: SimulatedMachine,
    profile: str,
    warmup: int,
) -> DecisionQuality:
    """Replay a trace with the choices that the prediction leads to.

    Per position the exact optimum for the predicted routing is chosen from the whole tree, all of
    its levels drafted, and held against the optimum for the true routing; see
    :func:`specfit_opt.replay.replay`.

    Parameters
    ----------
    trace : Trace
    predictor : RoutingPredictor
        Copied; what it has learned before, it knows.
    machine : SimulatedMachine
    profile : str
        The machine's name.
    warmup : int
        Positions at the start of each text that are decoded plainly and not counted.
    """
    shares: list[float] = []
    expected = occurred = 0

    def compare(view: RecordedView, outcome: Outcome) -> None:
        nonlocal expected, occurred
        tree = DraftTree(view.parent, view.path_prob)
        cost = machine.cost_model
        cost = cost.with_fixed_time(cost.fixed_time + view.draft_time)
        true = ExpertRouting(view.true_experts, trace.n_experts, view.resident)
        got = evaluate(tree, true, cost, outcome.choice.nodes)
        shares.append(got.throughput / solve(tree, true, cost).throughput)
        wanted = expert_union(view.experts()[outcome.choice.nodes], trace.n_experts)
        expected += int(np.count_nonzero(wanted & ~view.resident))
        occurred += int(outcome.misses.sum())

    whole = int(np.diff(trace.cycle_start).max())
    policy = make_policy("pool-exact", levels=max(trace.max_depth, 1), top_k=whole, width=whole)
    decode = RecordedDecode(trace, policy, machine, deepcopy(predictor), warmup=warmup)
    for first, end in trace.prompts:
        decode.text(first, end, watch=compare)
    return DecisionQuality(
        profile=profile,
        slots=machine.slots,
        cycles=len(shares),
        share=float(np.exp(np.mean(np.log(shares)))) if shares else float("nan"),
        worst_decile=float(np.quantile(shares, 0.1)) if shares else float("nan"),
        misses=expected / occurred if occurred else float("nan"),
    )
