"""Replays through the runtime's policies, held against the replay of `specfit_opt`."""

from __future__ import annotations

import numpy as np
import pytest
from random_trace import random_trace
from specfit_runtime.simulation import simulate

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.policies import POLICIES
from specfit_opt.replay import CACHES, replay
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictors import PREDICTORS, RoutingPredictor, make_predictor

PRICES = {"expert_bytes": EXAMPLE_EXPERT_BYTES, "layer_repeat": EXAMPLE_LAYER_REPEAT}
FIXED = ("ar", "chain-1", "chain-4", "eagle-8", "eagle-32")
BLIND = [name for name, kind in CACHES.items() if not kind.clairvoyant and name != "resident"]


@pytest.mark.parametrize("cache_policy", BLIND)
def test_fixed_policies_take_what_they_take_in_the_replay(cache_policy: str) -> None:
    options = {"profile": "nvme", "cache": ["12.5%", "50%"], "cache_policy": cache_policy, **PRICES}
    theirs = replay(example_trace(), policies=FIXED, **options)
    ours = simulate(example_trace(), policies=FIXED, **options)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.policy, a.slots, a.passes, a.tokens) == (b.policy, b.slots, b.passes, b.tokens)
        assert (a.nodes, a.prompts) == (b.nodes, b.prompts)
        if cache_policy != "admit":  # weighs by path probabilities, here calibrated ones
            assert (a.misses, a.hits, a.bytes) == (b.misses, b.hits, b.bytes)
            assert a.transfer_seconds == pytest.approx(b.transfer_seconds)
        if a.policy != "chain-4":  # ends where the recording expanded no node, and drafts no more
            assert a.levels == b.levels
            assert a.draft_seconds == pytest.approx(b.draft_seconds)
        assert a.compute_seconds == pytest.approx(b.compute_seconds)


@pytest.mark.parametrize("name", [kind.default_name for kind in POLICIES.values()])
def test_every_policy_decodes_to_the_end(name: str) -> None:
    trace = example_trace()
    (result,) = simulate(trace, policies=[name], predictor="frequency", cache="25%", **PRICES)
    counted = sum(end - first - 12 for first, end in trace.prompts)
    assert counted <= result.tokens < counted + len(trace.prompts) * (trace.max_depth + 1)
    assert result.passes <= result.tokens
    assert result.policy == name


@pytest.mark.parametrize("name", [n for n, k in PREDICTORS.items() if not k.needs])
def test_every_predictor_that_needs_no_model_serves(name: str) -> None:
    (result,) = simulate(example_trace(), predictor=name, cache="25%", **PRICES)
    assert result.tokens >= 132


def test_true_routing_is_worth_more_than_a_guess() -> None:
    speed = {
        name: simulate(example_trace(), predictor=name, cache="50%", **PRICES)[0].tokens_per_second
        for name in ("oracle", "frequency", "last-token")
    }
    assert speed["oracle"] > max(speed["frequency"], speed["last-token"])


def test_traces_are_decoded_one_after_the_other_and_teach_each_other() -> None:
    trace = example_trace()
    once = simulate(trace, predictor="frequency", cache="50%", **PRICES)
    first, second = simulate([trace, trace], predictor="frequency", cache="50%", **PRICES)
    assert first == once[0]
    # The second time every token of the text is known.
    assert second.tokens_per_second > first.tokens_per_second


def test_results_repeat() -> None:
    runs = [simulate(example_trace(), predictor="frequency", cache="25%", **PRICES)] * 2
    assert runs[0] == runs[1]


def test_progress_counts_texts() -> None:
    seen: list[tuple[int, int]] = []
    simulate(
        example_trace(),
        policies=["ar", "chain-1"],
        cache=["25%", "50%"],
        progress=lambda done, total: seen.append((done, total)),
        **PRICES,
    )
    assert seen == [(i, 12) for i in range(1, 13)]


def test_a_predictor_can_be_made_by_the_caller() -> None:
    made: list[RoutingPredictor] = []

    def predictor() -> RoutingPredictor:
        made.append(make_predictor("frequency"))
        return made[-1]

    policies = ["ar", "specfit"]
    simulate(example_trace(), policies=policies, predictor=predictor, cache="25%", **PRICES)
    assert len(made) == 2


def test_bad_arguments_say_what_is_wrong() -> None:
    trace = example_trace()
    with pytest.raises(InvalidInputError, match="no trace"):
        simulate([])
    with pytest.raises(InvalidInputError, match="different models"):
        simulate([trace, random_trace(np.random.default_rng(0))], expert_bytes=1)
    with pytest.raises(InvalidInputError, match="resident"):
        simulate(trace, profile="hbm", **PRICES)
    with pytest.raises(InvalidInputError, match="beforehand"):
        simulate(trace, cache_policy="belady", cache="25%", **PRICES)
    with pytest.raises(InvalidInputError, match="predictor"):
        simulate(trace, predictor="crystal-ball", cache="25%", **PRICES)
    with pytest.raises(InvalidInputError, match="warmup"):
        simulate(trace, warmup=-1, cache="25%", **PRICES)
