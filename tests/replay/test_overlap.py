"""Transfers that hide behind compute: what of them, and what a policy learns of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from specfit_opt import CostModel
from specfit_opt.data import example_trace
from specfit_opt.errors import InvalidInputError
from specfit_opt.policies import make_policy
from specfit_opt.replay import Overlap, RecordedDecode, SimulatedMachine, replay


def test_hidden_is_what_is_guessed_or_what_fits() -> None:
    overlap = Overlap(coverage=0.5, precision=0.8, window=0.5)
    # Half a layer's compute of 2 s each is 1 s, in which 0.8 s of right guesses come.
    hidden = overlap.hidden(np.array([0.0, 1.0, 1.6, 4.0]), 8.0)
    assert hidden.tolist() == pytest.approx([0.0, 0.5, 0.8, 0.8])
    assert overlap.wasted(hidden).tolist() == pytest.approx([0.0, 0.125, 0.2, 0.2])


@pytest.mark.parametrize("shares", [{"coverage": 0.0}, {"window": 0.0}])
def test_nothing_guessed_or_no_time_is_no_overlap(shares: dict[str, float]) -> None:
    options: dict[str, Any] = {"policies": ["chain-2", "specfit"], "cache": "25%"}
    options |= {"expert_bytes": 9_437_184, "layer_repeat": 6}
    without = replay(example_trace(), **options)
    played = replay(example_trace(), overlap=Overlap(**shares), **options)
    assert [r.to_dict() for r in played] == [r.to_dict() for r in without]
    assert [r.hidden_seconds for r in played] == [0.0, 0.0]


@pytest.mark.parametrize("overlap", [None, Overlap(), Overlap(1.0, 1.0, 50.0)])
def test_an_expert_costs_what_the_link_takes_and_a_pass_what_it_waits(
    overlap: Overlap | None,
) -> None:
    trace = example_trace()
    cost = CostModel(0.02, 1e-4, np.full(trace.n_layers, 1e-4))
    machine = SimulatedMachine(cost, 1e-3, slots=16, overlap=overlap)
    decode = RecordedDecode(trace, make_policy("specfit"), machine)
    cycles = [cycle for first, end in trace.prompts for cycle in decode.text(first, end)]
    assert decode.correction.cost_model().expert_time == pytest.approx(1e-4)
    moved = [float(c.misses.sum()) * 1e-4 for c in cycles]
    for cycle, seconds in zip(cycles, moved, strict=True):
        assert cycle.hidden_seconds + cycle.transfer_seconds == pytest.approx(seconds)
    if overlap is not None:
        assert math.fsum(c.hidden_seconds for c in cycles) > 0.2 * math.fsum(moved)
    assert abs(decode.correction.error().bias) < 0.01


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"coverage": 1.1}, "coverage must be"),
        ({"precision": -0.1}, "precision must be"),
        ({"precision": 0.0}, "precision must be above 0"),
        ({"window": math.inf}, "window must be"),
    ],
)
def test_shares_out_of_range(shares: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Overlap(**shares)


def test_a_machine_without_transfer_hides_none() -> None:
    with pytest.raises(InvalidInputError, match="no transfer to hide"):
        replay(example_trace(), profile="hbm", expert_bytes=9_437_184, overlap=Overlap())
