"""Several decodes at once: each gives its own text, or is refused before it begins."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tiny_drafters import tiny_lm
from tiny_models import tiny_model, tiny_prompt

from specfit_opt.policies import make_policy
from specfit_runtime import SpecFit, calibrate, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import BusyError
from specfit_runtime.predictors import make_predictor
from specfit_runtime.tracing import record_trace

TOKENS = 10
GREEDY = {"max_new_tokens": TOKENS, "do_sample": False}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """Return the name of a drafter that loads weights when it is bound."""
    return f"lm:{tiny_lm(tmp_path_factory.mktemp('lm'), 160)}"


def at_once(*actions: Callable[[], object]) -> list[object]:
    """Return what the actions gave or raised, each in a thread of its own, begun together."""
    results: list[object] = [None] * len(actions)
    gate = threading.Barrier(len(actions))

    def run(i: int) -> None:
        gate.wait()
        try:
            results[i] = actions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def verdicts(results: list[object], wanted: list[object]) -> Counter[str]:
    """Count right texts and refusals; anything else fails."""
    seen: Counter[str] = Counter()
    for result, want in zip(results, wanted, strict=True):
        if isinstance(result, BusyError):
            seen["busy"] += 1
        else:
            assert result == want, result
            seen["right"] += 1
    return seen


class Started:
    """A streamer that knows whether a token came, beyond the prompt."""

    def __init__(self) -> None:
        self.puts = 0

    def put(self, value: torch.Tensor) -> None:
        self.puts += 1

    def end(self) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_eight_decodes_and_a_plain_one(tiny_folder, lm, rounds):
    folder = tiny_folder("qwen3_moe")
    stock = tiny_model("qwen3_moe")
    prompts = [tiny_prompt(6 + i, seed=i) for i in range(9)]
    wanted: list[object] = [stock.generate(p, **GREEDY).tolist() for p in prompts]
    models = [
        load_offloaded(folder, expert_cache=0.25, cache_policy=policy, dtype="float32")
        for policy in ["lfu", "lru"] * 4
    ]
    policies = ["eagle-10", "chain-3", "eagle-10", "specfit"] * 2
    total: Counter[str] = Counter()
    try:
        for number in range(rounds):
            # New ones at first, so that loading drafters at once is part of it.
            if number % 5 == 0:
                specs = [SpecFit(lm, policy=policy) for policy in policies]
            streamers = [Started() for _ in range(9)]

            def decode(i: int, specs=specs, streamers=streamers) -> object:
                extra = {"custom_generate": specs[i]} if i < 8 else {}
                model = models[i % 8]
                return model.generate(
                    prompts[i], **GREEDY, **extra, streamer=streamers[i]
                ).tolist()

            results = at_once(*(lambda i=i: decode(i) for i in range(9)))
            total += verdicts(results, wanted)
            for result, streamer in zip(results, streamers, strict=True):
                if isinstance(result, BusyError):
                    assert streamer.puts <= 1  # the prompt
        print(f"{rounds} rounds: {dict(total)}")
        assert total["right"] + total["busy"] == 9 * rounds
    finally:
        for model in models:
            offload_of(model).close()


@pytest.mark.parametrize("shared", ["spec", "drafter", "predictor", "policy", "model"])
def test_what_two_threads_share(tiny_folder, lm, shared):
    folder = tiny_folder("qwen3_moe")
    prompt = tiny_prompt()
    want: object = tiny_model("qwen3_moe").generate(prompt, **GREEDY).tolist()
    models = [load_offloaded(folder, expert_cache=0.5, dtype="float32") for _ in "ab"]
    if shared == "spec":
        specs = [SpecFit(lm, policy="chain-3")] * 2
    else:
        drafter, predictor = make_drafter(lm), make_predictor("frequency")
        policy = make_policy("eagle-10")
        specs = [
            SpecFit(
                drafter if shared == "drafter" else lm,
                policy=policy if shared == "policy" else "eagle-10",
                predictor=predictor if shared == "predictor" else "frequency",
            )
            for _ in "ab"
        ]
    if shared == "model":
        models[1] = models[0]

    def decode(i: int) -> object:
        return models[i].generate(prompt, **GREEDY, custom_generate=specs[i]).tolist()

    seen: Counter[str] = Counter()
    for _ in range(3):
        seen += verdicts(at_once(lambda: decode(0), lambda: decode(1)), [want, want])
        # One after the other is no trouble, also where a part went from one model to another.
        assert [decode(0), decode(1)] == [want, want]
    assert seen["right"] >= 3
    for model in models:
        offload_of(model).close()


def test_plain_passes_beside_everything(tiny_folder, lm):
    """Of one model: plain texts and bare passes go on beside a decode, a trace, a calibration."""
    folder = tiny_folder("qwen3_moe")
    prompt = tiny_prompt(9)
    stock = tiny_model("qwen3_moe")
    want: object = stock.generate(prompt, **GREEDY).tolist()
    model = load_offloaded(folder, expert_cache=0.25, cache_policy="lru", dtype="float32")
    spec = SpecFit(lm, policy="eagle-10")
    drafter = make_drafter(lm)

    def plain() -> object:
        return [model.generate(prompt, **GREEDY).tolist() for _ in range(2)]

    def bare() -> object:
        with torch.no_grad():
            return [model(prompt).logits.argmax(-1).tolist() for _ in range(4)]

    def decode() -> object:
        return model.generate(prompt, **GREEDY, custom_generate=spec).tolist()

    def trace() -> object:
        trace = record_trace(model, drafter, [prompt[0].tolist()], max_new_tokens=4, levels=2)
        return trace.experts.shape[1:]

    def measure() -> object:
        return len(calibrate(model, max_nodes=4, repeats=1).node_sizes)

    with torch.no_grad():
        argmax = stock(prompt).logits.argmax(-1).tolist()
    with offload_of(model):
        for action, result in ((decode, want), (trace, (3, 2)), (measure, 3)):
            results = at_once(plain, bare, action, decode)
            seen = verdicts(results, [[want] * 2, [argmax] * 4, result, want])
            assert seen["right"] >= 3
        assert decode() == want


def test_a_drafter_that_another_model_had_is_bound_again(tiny_folder, tmp_path):
    """Bound by another SpecFit, a calibration or a trace to a model of another shape."""
    prompt = tiny_prompt()
    models = {
        name: load_offloaded(tiny_folder(name), expert_cache=0.5, dtype="float32")
        for name in ("qwen3_moe", "olmoe")
    }
    drafter, predictor = make_drafter("prompt-lookup"), make_predictor("frequency")
    specs = {name: SpecFit(drafter, policy="chain-2", predictor=predictor) for name in models}
    for name in [*models, *models]:
        want = tiny_model(name).generate(prompt, **GREEDY)
        got = models[name].generate(prompt, **GREEDY, custom_generate=specs[name])
        assert torch.equal(want, got)
        assert drafter.bound_to(models[name])
    for model in models.values():
        offload_of(model).close()
