"""What users of `generate` know goes on working."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from tiny_drafters import tiny_lm
from tiny_models import tiny_model, tiny_prompt
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import BusyError, DrafterError, InvalidInputError


class Heard(BaseStreamer):
    def __init__(self):
        self.values: list[list[int]] = []
        self.ended = 0

    def put(self, value):
        self.values.append(value.flatten().tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("new_tokens", [1, 2, 3, 4, 5, 7, 11])
def test_no_more_than_max_new_tokens(decode, new_tokens):
    ours, stock = decode(max_new_tokens=new_tokens)
    assert ours.tolist() == stock.tolist()


def test_max_length(decode, target):
    ours, stock = decode(max_new_tokens=None, max_length=target.prompt.shape[1] + 9)
    assert ours.tolist() == stock.tolist()


def test_an_end_token_inside_an_accepted_block_ends_the_text(decode, spec, target):
    plain = target.stock.generate(target.prompt, max_new_tokens=24, do_sample=False)
    new = plain[0, target.prompt.shape[1] :].tolist()
    for place in (2, 3, 5, 6, 8, 11, 14):
        end = new[place]
        ours, stock = decode(eos_token_id=end, pad_token_id=0)
        assert ours.tolist() == stock.tolist()
        assert ours.shape[1] - target.prompt.shape[1] == new.index(end) + 1
    # Else no end token lay inside an accepted block.
    assert spec.report.totals.tokens_per_pass > 2


def test_a_streamer_hears_each_token_once_and_then_the_end(model, spec, target):
    ours, stock = Heard(), Heard()
    model.generate(
        target.prompt, max_new_tokens=12, do_sample=False, custom_generate=spec, streamer=ours
    )
    target.stock.generate(target.prompt, max_new_tokens=12, do_sample=False, streamer=stock)
    assert ours.values == stock.values
    assert ours.ended == stock.ended == 1


class Never(LogitsProcessor):
    """Counts its calls, as processors with a memory do."""

    def __init__(self, token):
        self.token = token
        self.lengths: list[int] = []

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        scores[:, self.token] = -torch.inf
        return scores


def test_a_processor_of_the_users_own_is_asked_once_per_token(model, spec, target):
    first = int(target.stock.generate(target.prompt, max_new_tokens=3, do_sample=False)[0, -1])
    asked = []
    outputs = []
    for who, extra in ((model, {"custom_generate": spec}), (target.stock, {})):
        never = Never(first)
        outputs.append(
            who.generate(
                target.prompt,
                max_new_tokens=20,
                do_sample=False,
                logits_processor=LogitsProcessorList([never]),
                **extra,
            ).tolist()
        )
        asked.append(never.lengths)
    assert outputs[0] == outputs[1]
    assert first not in outputs[0][0][target.prompt.shape[1] :]
    assert asked[0] == asked[1]


class AfterToken(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([input_ids.shape[1] >= self.length])


def test_a_stopping_criterion_of_the_users_own(decode, target):
    criteria = StoppingCriteriaList([AfterToken(target.prompt.shape[1] + 6)])
    ours, stock = decode(stopping_criteria=criteria)
    assert ours.tolist() == stock.tolist()
    assert ours.shape[1] == target.prompt.shape[1] + 6


@pytest.mark.parametrize(
    "arguments",
    [
        {"repetition_penalty": 1.6},
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 10, "eos_token_id": 5, "pad_token_id": 0},
        {"bad_words_ids": [[3], [7, 9]]},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.6, "top_p": 0.8},
        {"do_sample": True, "top_k": 4, "repetition_penalty": 1.3},
        {"do_sample": True, "min_p": 0.05, "typical_p": 0.9},
    ],
    ids=lambda a: ",".join(a),
)
def test_sampling_and_processors_give_the_text_of_stock_with_the_same_seed(
    decode, spec, arguments
):
    for seed in range(2):
        ours, stock = decode(seed=seed, max_new_tokens=40, **arguments)
        assert ours.tolist() == stock.tolist()
    assert spec.report.do_sample == arguments.get("do_sample", False)


def test_dictionary_results(decode):
    ours, stock = decode(return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert ours.sequences.tolist() == stock.sequences.tolist()
    for name in ("scores", "logits"):
        mine, theirs = getattr(ours, name), getattr(stock, name)
        assert len(mine) == len(theirs) == 24
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_conversation_goes_on_with_the_returned_cache(model, spec, target):
    more = tiny_prompt(5, seed=3)
    outputs = []
    for who, extra in ((model, {"custom_generate": spec}), (target.stock, {})):
        arguments = {
            "max_new_tokens": 12,
            "do_sample": False,
            "return_dict_in_generate": True,
            **extra,
        }
        first = who.generate(target.prompt, **arguments)
        cache = getattr(first, "cache", None) or first.past_key_values
        name = "cache" if hasattr(first, "cache") else "past_key_values"
        assert cache.get_seq_length() == first.sequences.shape[1] - 1
        text = torch.cat([first.sequences, more], dim=1)
        outputs.append(who.generate(text, **{name: cache}, **arguments).sequences.tolist())
    assert outputs[0] == outputs[1]


def test_what_was_learned_stays_until_it_is_forgotten(model, spec, target):
    for _ in range(2):
        model.generate(target.prompt, max_new_tokens=16, do_sample=False, custom_generate=spec)
    trials = sum(depth.trials for depth in spec.acceptance.depths)
    model.generate(target.prompt, max_new_tokens=16, do_sample=False, custom_generate=spec)
    assert sum(depth.trials for depth in spec.acceptance.depths) > trials
    spec.forget()
    assert spec.acceptance is None


def test_one_object_serves_another_model_afresh(spec, target):
    for _ in range(2):
        model = load_offloaded(target.folder, expert_cache=2, dtype="float32")
        with offload_of(model):
            out = model.generate(
                target.prompt, max_new_tokens=10, do_sample=False, custom_generate=spec
            )
        stock = target.stock.generate(target.prompt, max_new_tokens=10, do_sample=False)
        assert out.tolist() == stock.tolist()
        assert spec.report.new_tokens == 10


def refused(model, spec, match, ids, **arguments):
    with pytest.raises(InvalidInputError, match=match):
        model.generate(
            ids, **{"max_new_tokens": 4, "do_sample": False, "custom_generate": spec, **arguments}
        )


def test_what_cannot_be_given_is_refused(model, spec, target):
    prompt = target.prompt
    refused(model, spec, "one sequence", torch.cat([prompt, prompt]))
    refused(model, spec, "beam", prompt, num_beams=2)
    refused(model, spec, "num_return_sequences", prompt, num_return_sequences=2, do_sample=True)
    refused(model, spec, "empty", prompt[:, :0])
    mask = torch.ones_like(prompt)
    mask[0, 0] = 0
    refused(model, spec, "mask", prompt, attention_mask=mask)
    refused(model, spec, "guidance_scale", prompt, guidance_scale=1.5)
    refused(
        model, spec, "output_attentions", prompt, output_attentions=True,
        return_dict_in_generate=True,
    )
    refused(model, spec, "static|Static", prompt, cache_implementation="static")


@pytest.mark.parametrize("length", [-6, 10])
def test_beyond_the_context_it_goes_on_as_stock_and_says_so(model, spec, target, length):
    made_for = model.config.max_position_embeddings
    prompt = tiny_prompt(made_for + length)
    with warnings.catch_warnings(record=True) as caught:  # the drafter warns too, of itself
        warnings.simplefilter("always")
        ours = model.generate(prompt, max_new_tokens=20, do_sample=False, custom_generate=spec)
    stock = target.stock.generate(prompt, max_new_tokens=20, do_sample=False)
    assert ours.tolist() == stock.tolist()
    said = f"longer than the {made_for} tokens that the model"
    assert sum(said in str(warning.message) for warning in caught) == 1
    assert sum(said in warning for warning in spec.report.warnings) == 1


def test_a_stock_model_is_refused(spec, target):
    with pytest.raises(InvalidInputError, match="load_offloaded"):
        target.stock.generate(target.prompt, max_new_tokens=4, custom_generate=spec)


def test_a_policy_that_drafts_needs_a_drafter():
    with pytest.raises(InvalidInputError, match="no drafter was given"):
        SpecFit(policy="specfit")
    SpecFit(policy="ar")


def test_unknown_names_are_refused():
    for arguments in (
        {"policy": "fastest"},
        {"predictor": "crystal-ball"},
        {"drafter": "guess"},
        {"prefetch": "maybe"},
        {"profile": "nowhere.json"},
    ):
        with pytest.raises(InvalidInputError):
            SpecFit(**{"drafter": "prompt-lookup", **arguments})


def test_a_report_before_any_decode_says_so(spec):
    with pytest.raises(InvalidInputError, match="nothing was decoded"):
        _ = spec.report


def test_a_drafter_of_another_vocabulary_is_refused(model, target, tmp_path):
    spec = SpecFit(f"lm:{tiny_lm(tmp_path / 'other', 77)}", policy="chain-2")
    with pytest.raises(InvalidInputError, match="77"):
        model.generate(target.prompt, max_new_tokens=4, custom_generate=spec)
    # And the model is free for the next.
    model.generate(target.prompt, max_new_tokens=4, custom_generate=SpecFit(policy="ar"))


def test_nan_from_the_drafter_is_an_error_and_the_model_goes_on(model, target):
    drafter = make_drafter("prompt-lookup")
    children = drafter._children

    def poisoned(depth, top_k):
        found = children(depth, top_k)
        found.prob[:] = float("nan")
        return found

    drafter._children = poisoned
    prompt = torch.tensor([[4, 5, 6, 4, 5, 6, 4, 5]])
    with pytest.raises(DrafterError, match="NaN"):
        model.generate(
            prompt, max_new_tokens=30, do_sample=False,
            custom_generate=SpecFit(drafter, policy="chain-2"),
        )
    after = model.generate(
        prompt, max_new_tokens=8, do_sample=False, custom_generate=SpecFit(policy="ar")
    )
    stock = target.stock.generate(prompt, max_new_tokens=8, do_sample=False)
    assert after.tolist() == stock.tolist()


def test_the_target_is_not_modified(model, spec, target):
    before = {name: type(module) for name, module in model.named_modules()}
    forwards = {name: module.forward.__func__ for name, module in model.named_modules()}
    model.generate(target.prompt, max_new_tokens=8, do_sample=False, custom_generate=spec)
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert {n: m.forward.__func__ for n, m in model.named_modules()} == forwards
    assert type(model) is type(tiny_model("qwen3_moe"))


def test_a_second_generation_at_the_same_time_gets_a_clear_error(model, spec, target):
    inside, leave = threading.Event(), threading.Event()

    class Waits(Heard):
        def put(self, value):
            super().put(value)
            # The first is the prompt, which generate puts before the decode begins.
            if len(self.values) == 2:
                inside.set()
                leave.wait(60)

    waits = Waits()
    thread = threading.Thread(
        target=model.generate,
        args=(target.prompt,),
        kwargs={
            "max_new_tokens": 4,
            "do_sample": False,
            "custom_generate": spec,
            "streamer": waits,
        },
    )
    thread.start()
    try:
        assert inside.wait(60)
        with pytest.raises(BusyError, match="decoding for another call"):
            model.generate(target.prompt, max_new_tokens=4, custom_generate=SpecFit(policy="ar"))
    finally:
        leave.set()
        thread.join()
    assert waits.ended == 1
