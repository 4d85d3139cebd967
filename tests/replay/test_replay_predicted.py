"""Replays in which routing is predicted, acceptance and prices are learned, as in a live decode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt import CostModel
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import Trace
from specfit_opt.policies import POLICIES, Choice, DraftView, Outcome, Policy, make_policy
from specfit_opt.profiles import load_profile
from specfit_opt.replay import RecordedDecode, RecordedView, SimulatedMachine, replay
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictors import PREDICTORS, RoutingPredictor, make_predictor

PRICES: dict[str, Any] = {
    "expert_bytes": EXAMPLE_EXPERT_BYTES,
    "layer_repeat": EXAMPLE_LAYER_REPEAT,
}
FIXED = ("ar", "chain-1", "chain-4", "eagle-8", "eagle-32")
NAMES = [name for kind in POLICIES.values() if "METHOD" not in (name := kind.default_name)]


def frequency() -> RoutingPredictor:
    return make_predictor("frequency")


def test_fixed_policies_do_not_depend_on_the_prediction() -> None:
    options = {"policies": FIXED, "profile": "nvme", "cache": ["12.5%", "50%"], **PRICES}
    assert replay(example_trace(), predictor=frequency, **options) == replay(
        example_trace(), **options
    )


@pytest.mark.parametrize("name", [*NAMES, "pool-exact", "pool-greedy"])
def test_every_policy_decodes_to_the_end(name: str) -> None:
    trace = example_trace()
    (result,) = replay(trace, policies=[name], predictor=frequency, cache="25%", **PRICES)
    counted = sum(end - first - 12 for first, end in trace.prompts)
    assert counted <= result.tokens < counted + len(trace.prompts) * (trace.max_depth + 1)
    assert result.passes <= result.tokens
    assert result.policy == make_policy(name).name


@pytest.mark.parametrize("name", [n for n, k in PREDICTORS.items() if not k.needs])
def test_every_predictor_that_needs_no_model_serves(name: str) -> None:
    (result,) = replay(
        example_trace(),
        policies=["specfit"],
        predictor=lambda: make_predictor(name),
        cache="25%",
        **PRICES,
    )
    assert result.tokens >= 132


def test_true_routing_is_worth_more_than_a_guess() -> None:
    options = {"policies": ["specfit"], "cache": "50%", **PRICES}
    (known,) = replay(example_trace(), **options)
    (guessed,) = replay(example_trace(), predictor=frequency, **options)
    assert known.tokens_per_second > guessed.tokens_per_second


def test_traces_are_decoded_one_after_the_other_and_teach_each_other() -> None:
    trace = example_trace()
    # What is known shows in what is chosen, not in what choosing takes.
    free = load_profile("pcie4").replace(policy_time={}, prediction_time=0.0)
    options: dict[str, Any] = {"profile": free, "predictor": frequency, "cache": "50%", **PRICES}
    options["policies"] = ["specfit"]
    (once,) = replay(trace, **options)
    first, second = replay([trace, trace], **options)
    assert first == once
    # The second time every token of the text is known.
    assert second.tokens_per_second > first.tokens_per_second


def test_results_repeat() -> None:
    options = {"policies": ["specfit"], "predictor": frequency, "cache": "25%", **PRICES}
    assert replay(example_trace(), **options) == replay(example_trace(), **options)


def test_each_decode_has_a_predictor_of_its_own() -> None:
    made: list[RoutingPredictor] = []

    def predictor() -> RoutingPredictor:
        made.append(frequency())
        return made[-1]

    policies = ["ar", "specfit"]
    replay(example_trace(), policies=policies, predictor=predictor, cache=["25%", "50%"], **PRICES)
    assert len({id(one) for one in made}) == 4


def test_by_cache_size_then_policy_then_trace() -> None:
    rng = np.random.default_rng(0)
    traces = [random_trace(rng, prompts=1, positions=n) for n in (20, 25)]
    results = replay(traces, policies=["ar", "chain-1"], cache=[3, 6])
    assert [(r.slots, r.policy) for r in results] == [
        (slots, policy) for slots in (3, 6) for policy in ("ar", "chain-1") for _ in traces
    ]
    assert [r.tokens for r in results if r.policy == "ar"] == [20 - 12, 25 - 12] * 2


def test_bad_arguments_say_what_is_wrong() -> None:
    trace = example_trace()
    with pytest.raises(InvalidInputError, match="no trace was given"):
        replay([])
    with pytest.raises(InvalidInputError, match="different models"):
        replay([trace, random_trace(np.random.default_rng(0))], expert_bytes=1)


# ---- one decode: what the policy sees and learns


def chain_trace(accepted: list[list[bool]], prob: float = 0.5) -> Trace:
    """Return chains of one expert, which the target follows as told; every draft has ``prob``."""
    lengths = [len(chain) for chain in accepted]
    n, start = sum(lengths), np.concatenate([[0], np.cumsum(lengths)])
    depth = np.concatenate([np.arange(length) for length in lengths])
    return Trace(
        cycle_start=start,
        prompt=[0] * len(accepted),
        position=list(range(len(accepted))),
        parent=depth - 1,
        token=[7] * n,
        path_prob=(prob**depth).astype(np.float32),
        depth=depth,
        accepted=np.concatenate(accepted),
        experts=np.zeros((n, 1, 1), dtype=np.int16),
        n_experts=2,
    )


MACHINE = SimulatedMachine(CostModel(1.0, 0.01, np.full(1, 0.1)), draft_time=0.1, slots=1)


def test_acceptance_is_learned_of_what_was_drafted_below_accepted_nodes() -> None:
    # Whether or not the children were verified: the target's own token says whether one was right.
    trace = chain_trace([[True, True, False], [True, False], [True], [True]])

    class RootAlone(Policy):
        name = "root-alone"

        def choose(self, view: DraftView) -> Choice:
            while view.grow(1, 1):
                pass
            return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0)

    class Whole(RootAlone):
        def choose(self, view: DraftView) -> Choice:
            super().choose(view)
            return Choice(np.arange(len(view.parent)), expected_tokens=1.0)

    def learned(policy: Policy) -> list[tuple[int, int]]:
        decode = RecordedDecode(trace, policy, MACHINE, warmup=0)
        decode.text(0, 4)
        return [(d.trials, d.hits) for d in decode.calibrator.state().depths]

    # Position 0: the child of the root is right; what might have followed it is not known.
    assert learned(RootAlone()) == [(2, 1)]
    # All of it: position 0 commits two tokens, so position 1 is passed over.
    assert learned(Whole()) == [(1, 1), (1, 0)]
    # Fixed policies do not look at it.
    assert learned(make_policy("chain-2")) == []
    assert learned(make_policy("ar")) == []


def test_a_fixed_policy_takes_the_earlier_of_equal_children() -> None:
    trace = Trace(
        cycle_start=[0, 5],
        prompt=[0],
        position=[0],
        parent=[-1, 0, 0, 2, 1],
        token=[0] * 5,
        path_prob=np.array([1, 0.5, 0.5, 0.25, 0.125], dtype=np.float32),
        depth=[0, 1, 1, 2, 2],
        accepted=[True, False, True, False, False],
        experts=np.zeros((5, 1, 1), dtype=np.int16),
        n_experts=2,
    )
    for name, nodes, levels, tokens in (
        ("chain-2", [0, 1, 4], 2, 1),
        ("chain-9", [0, 1, 4], 2, 1),  # ends with the recording
        ("eagle-3", [0, 1, 2], 2, 2),
    ):
        seen: list[list[int]] = []
        decode = RecordedDecode(trace, make_policy(name), MACHINE, warmup=0)
        (cycle,) = decode.text(
            0, 1, watch=lambda view, out, seen=seen: seen.append(view.nodes[out.choice.nodes])
        )
        assert seen[0].tolist() == nodes
        assert (cycle.levels, cycle.committed) == (levels, tokens)


def test_counted_cycles_are_watched_with_what_became_of_them() -> None:
    trace = example_trace()
    machine = SimulatedMachine(CostModel(0.02, 1e-4, np.full(8, 1e-3)), 1e-3, slots=16)
    watched: list[tuple[RecordedView, Outcome]] = []
    decode = RecordedDecode(trace, make_policy("specfit", guard=False), machine, frequency())
    cycles = decode.text(*trace.prompts[0], watch=lambda *both: watched.append(both))
    assert len(cycles) == len(watched) > 10
    for cycle, (view, outcome) in zip(cycles, watched, strict=True):
        assert outcome.choice is cycle.choice
        assert (outcome.levels, outcome.committed) == (cycle.levels, cycle.committed)
        assert outcome.seconds == cycle.seconds
        assert (outcome.misses <= trace.n_experts).all()
        assert cycle.committed == len(outcome.accepted)
        assert view.accepted[outcome.accepted].all()
        np.testing.assert_array_equal(outcome.experts, view.true_experts[outcome.choice.nodes])


def test_the_prompt_is_decoded_plainly_and_teaches_the_predictor() -> None:
    trace = example_trace()
    told: list[int] = []

    class Noting(type(frequency())):  # type: ignore[misc]
        def observe(self, tokens: Any, experts: Any) -> None:
            told.extend(np.asarray(tokens).tolist())
            super().observe(tokens, experts)

    machine = SimulatedMachine(CostModel(0.02, 1e-4, np.full(8, 1e-3)), 1e-3, slots=16)
    first, end = trace.prompts[0]
    decode = RecordedDecode(trace, make_policy("specfit"), machine, Noting(), warmup=12)
    cycles = decode.text(first, end)
    roots = trace.token[trace.cycle_start[first:end]].tolist()
    assert told[:12] == roots[:12]
    # The text goes on; a last pass may reach past its end.
    assert told[: len(roots)] == roots
    assert len(told) == 12 + sum(cycle.committed for cycle in cycles)


def test_what_a_policy_says_it_does_not_ask_is_not_prepared() -> None:
    class Silent(RoutingPredictor):
        name = "silent"

        def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
            pass

        def predict(self, nodes: Any) -> Any:
            raise AssertionError("asked")

        def observe(self, tokens: Any, experts: Any) -> None:
            raise AssertionError("taught")

    class Curious(Policy):
        name = "curious"
        priced = predicts = False

        def choose(self, view: DraftView) -> Choice:
            with pytest.raises(InvalidInputError, match=r"set Policy\.priced"):
                view.cost_model  # noqa: B018
            with pytest.raises(InvalidInputError, match=r"set Policy\.priced"):
                view.level_time  # noqa: B018
            return Choice(np.zeros(1, dtype=np.int64), expected_tokens=1.0)

    trace = random_trace(np.random.default_rng(0))
    for policy in (Curious(), make_policy("chain-2"), make_policy("evict")):
        (result,) = replay(trace, policies=[policy], predictor=Silent, cache=4)
        assert result.passes > 0


def test_jitter_scatters_passes_around_their_mean() -> None:
    trace = example_trace()
    cost = CostModel(1.0, 0.0, np.zeros(8))

    def seconds(jitter: float, seed: int) -> list[float]:
        machine = SimulatedMachine(cost, 0.0, slots=64, jitter=jitter)
        decode = RecordedDecode(trace, make_policy("ar"), machine, warmup=0, seed=seed)
        return [
            cycle.compute_seconds
            for first, end in trace.prompts
            for cycle in decode.text(first, end)
        ]

    assert set(seconds(0.0, 0)) == {1.0}
    scattered = seconds(0.3, 0)
    assert scattered == seconds(0.3, 0) != seconds(0.3, 1)
    assert np.mean(scattered) == pytest.approx(1.0, abs=0.1)
    assert np.std(scattered) == pytest.approx(0.3, abs=0.1)
