"""Every argument of `generate` and every field of its config: as stock, or refused at the start."""

from __future__ import annotations

import inspect
import json
import shutil

import pytest
import torch
from tiny_models import tiny_prompt
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation import StopStringCriteria, WatermarkingConfig
from transformers.generation.streamers import BaseStreamer

from specfit_runtime import SpecFit, demo_model, load_offloaded, offload_of
from specfit_runtime.errors import InvalidInputError

PROMPT = tiny_prompt(8)
SAMPLED = {"do_sample": True}
# Not in the prompt, where stock decoding would hide it.
PAD = next(token for token in range(160) if token not in PROMPT)

#: What is tried of each field of a generation config, and what must come of it: the text of stock
#: decoding, or a refusal; "either" where stock refuses too or needs what is not installed.
FIELDS: dict[str, tuple[str, list[dict[str, object]]]] = {
    "max_length": ("same", [{"max_length": 20, "max_new_tokens": None}]),
    "max_new_tokens": ("same", [{"max_new_tokens": 1}, {"max_new_tokens": 5}]),
    "min_length": ("same", [{"min_length": 15, "eos_token_id": [3, 9, 60], "pad_token_id": PAD}]),
    "min_new_tokens": ("same", [{"min_new_tokens": 9, "eos_token_id": 5, "pad_token_id": PAD}]),
    "early_stopping": ("same", [{"early_stopping": True}]),
    "max_time": ("same", [{"max_time": 1e5}, {"max_time": 1e-9}]),
    "stop_strings": ("either", [{"stop_strings": ["x"]}]),  # with a tokenizer: below
    "do_sample": ("same", [SAMPLED]),
    "num_beams": ("refused", [{"num_beams": 2}]),
    "use_mtp": ("refused", [{"use_mtp": True}]),
    "use_cache": ("refused", [{"use_cache": False}]),
    "cache_implementation": (
        "refused", [{"cache_implementation": name} for name in ("static", "offloaded")]
    ),
    "cache_config": ("same", [{"cache_config": {"nbits": 4}}]),
    "max_cache_len": ("same", [{"max_cache_len": 64}]),
    "temperature": ("same", [{**SAMPLED, "temperature": 0.5}, {"temperature": 0.5}]),
    "top_k": ("same", [{**SAMPLED, "top_k": 3}]),
    "top_p": ("same", [{**SAMPLED, "top_p": 0.5}]),
    "min_p": ("same", [{**SAMPLED, "min_p": 0.2}]),
    "top_h": ("same", [{**SAMPLED, "top_h": 0.4}]),
    "typical_p": ("same", [{**SAMPLED, "typical_p": 0.5}]),
    "epsilon_cutoff": ("same", [{**SAMPLED, "epsilon_cutoff": 0.01}]),
    "eta_cutoff": ("same", [{**SAMPLED, "eta_cutoff": 0.01}]),
    "repetition_penalty": ("same", [{"repetition_penalty": 1.8}]),
    "encoder_repetition_penalty": ("same", [{"encoder_repetition_penalty": 1.8}]),
    "length_penalty": ("same", [{"length_penalty": 2.0}]),
    "no_repeat_ngram_size": ("same", [{"no_repeat_ngram_size": 2}]),
    "bad_words_ids": ("same", [{"bad_words_ids": [[3], [60, 9]]}]),
    "renormalize_logits": ("same", [{"renormalize_logits": True, **SAMPLED}]),
    "forced_bos_token_id": ("same", [{"forced_bos_token_id": 7}]),
    "forced_eos_token_id": ("same", [{"forced_eos_token_id": 7}]),
    "remove_invalid_values": ("same", [{"remove_invalid_values": True}]),
    "exponential_decay_length_penalty": (
        "same",
        [{"exponential_decay_length_penalty": (3, 1.5), "eos_token_id": 5, "pad_token_id": PAD}],
    ),
    "suppress_tokens": ("same", [{"suppress_tokens": [3, 9, 60]}]),
    "begin_suppress_tokens": ("same", [{"begin_suppress_tokens": [3, 9, 60]}]),
    "sequence_bias": ("same", [{"sequence_bias": [[[3], -5.0], [[9], 5.0]]}]),
    "token_healing": ("either", [{"token_healing": True}]),  # with a tokenizer: below
    "guidance_scale": ("refused", [{"guidance_scale": 1.5}]),
    "watermarking_config": (
        "same", [{"watermarking_config": WatermarkingConfig(bias=4.0, seeding_scheme="lefthash")}]
    ),
    "num_return_sequences": ("refused", [{**SAMPLED, "num_return_sequences": 2}]),
    "output_attentions": (
        "refused", [{"output_attentions": True, "return_dict_in_generate": True}]
    ),
    "output_hidden_states": (
        "refused", [{"output_hidden_states": True, "return_dict_in_generate": True}]
    ),
    "output_scores": ("same", [{"output_scores": True, "return_dict_in_generate": True}]),
    "output_logits": ("same", [{"output_logits": True, "return_dict_in_generate": True}]),
    "return_dict_in_generate": ("same", [{"return_dict_in_generate": True}]),
    "pad_token_id": ("same", [{"pad_token_id": PAD}]),
    "bos_token_id": ("same", [{"bos_token_id": 4}]),
    "eos_token_id": ("same", [{"eos_token_id": [3, 9, 60, 17], "pad_token_id": PAD}]),
    "encoder_no_repeat_ngram_size": ("same", [{"encoder_no_repeat_ngram_size": 2}]),
    "decoder_start_token_id": ("same", [{"decoder_start_token_id": 4}]),
    "is_assistant": ("refused", [{"is_assistant": True}]),
    "num_assistant_tokens": ("same", [{"num_assistant_tokens": 3}]),
    "num_assistant_tokens_schedule": ("same", [{"num_assistant_tokens_schedule": "heuristic"}]),
    "assistant_confidence_threshold": ("same", [{"assistant_confidence_threshold": 0.9}]),
    "prompt_lookup_num_tokens": ("refused", [{"prompt_lookup_num_tokens": 3}]),
    "max_matching_ngram_size": ("same", [{"max_matching_ngram_size": 2}]),
    "assistant_early_exit": ("refused", [{"assistant_early_exit": 2}]),
    "assistant_lookbehind": ("same", [{"assistant_lookbehind": 3}]),
    "target_lookbehind": ("same", [{"target_lookbehind": 3}]),
    "assistant_ensemble_weight": ("same", [{"assistant_ensemble_weight": 0.5}]),
    "speculation_type": ("same", [{"speculation_type": "dflash"}]),
    "compile_config": ("same", [{"compile_config": None}]),
    "disable_compile": ("same", [{"disable_compile": True}]),
    "continuous_batching_config": ("same", [{"continuous_batching_config": None}]),
    "low_memory": ("same", [{"low_memory": True}]),
    "penalty_alpha": ("refused", [{"penalty_alpha": 0.6, "top_k": 4}]),
    "dola_layers": ("refused", [{"dola_layers": "low"}]),
    "diversity_penalty": ("same", [{"diversity_penalty": 0.5}]),
    "num_beam_groups": ("same", [{"num_beam_groups": 2}]),
    "constraints": ("refused", [{"constraints": [object()]}]),
    "force_words_ids": ("refused", [{"force_words_ids": [[3]]}]),
    "prefill_chunk_size": ("same", [{"prefill_chunk_size": 3}]),
    "transformers_version": ("same", [{"transformers_version": "5"}]),
}

_MASK = torch.ones_like(PROMPT)
_PADDED = torch.cat([torch.zeros_like(PROMPT[:, :2]), PROMPT], dim=1)
_HOLES = torch.tensor([[0, 0] + [1] * PROMPT.shape[1]])


def _odd_tokens(batch: int, ids: torch.Tensor) -> list[int]:
    return list(range(int(ids[-1]) % 2, 160, 2))


#: The same of the arguments of `generate`, those that its ``**kwargs`` take included.
ARGUMENTS: dict[str, tuple[str, list[dict[str, object]]]] = {
    "inputs": ("same", [{"inputs": PROMPT}, {"inputs": None, "bos_token_id": 4}]),
    "generation_config": (
        "same", [{"generation_config": GenerationConfig(max_new_tokens=7, repetition_penalty=1.4)}]
    ),
    "logits_processor": (
        "same",
        [
            {
                "logits_processor": LogitsProcessorList(
                    [MinLengthLogitsProcessor(20, torch.tensor([9, 60]), device="cpu")]
                )
            }
        ],
    ),
    "stopping_criteria": ("same", [{"stopping_criteria": StoppingCriteriaList()}]),
    "prefix_allowed_tokens_fn": ("same", [{"prefix_allowed_tokens_fn": _odd_tokens}]),
    "synced_gpus": ("refused", [{"synced_gpus": True}]),
    "assistant_model": ("refused", []),  # below
    "streamer": ("same", []),  # below
    "negative_prompt_ids": ("same", [{"negative_prompt_ids": PROMPT}]),
    "negative_prompt_attention_mask": ("same", [{"negative_prompt_attention_mask": _MASK}]),
    "custom_generate": ("same", [{}]),
    "kwargs": (
        "same",
        [
            {"inputs": None, "input_ids": PROMPT},
            {"attention_mask": _MASK},
            {"position_ids": torch.arange(8)[None]},
            {"logits_to_keep": 2},
            {"trust_remote_code": False},
            {"output_attentions": True},  # without a dictionary to return them in
            {"output_hidden_states": True},
        ],
    ),
    "kwargs that are refused": (
        "refused",
        [
            {"inputs": _PADDED, "attention_mask": _HOLES},
            {"position_ids": torch.arange(3, 11)[None]},
            {"inputs": None, "inputs_embeds": torch.zeros(1, 4, 48)},
            {"labels": PROMPT},
            {"output_router_logits": True},
            {"inputs": torch.cat([PROMPT, PROMPT])},
        ],
    ),
    "kwargs that stock refuses": (
        "either",
        [
            {"token_type_ids": torch.zeros_like(PROMPT)},
            {"encoder_outputs": ()},
            {"max_new_tokenz": 3},
            {"model": 3},
        ],
    ),
}


@pytest.fixture(scope="module")
def models(tiny_folder):
    folder = tiny_folder("qwen3_moe")
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_offloaded(folder, expert_cache=0.5, dtype="float32")
    spec = SpecFit(f"lm:{folder}", policy="eagle-10")
    yield stock, ours, spec
    offload_of(ours).close()


def test_the_tables_know_every_argument_and_field():
    parameters = set(inspect.signature(GenerationMixin.generate).parameters)
    assert parameters - {"self"} <= set(ARGUMENTS), parameters - set(ARGUMENTS)
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields <= set(FIELDS), fields - set(FIELDS)


CASES = [
    (name, outcome, change)
    for table in (FIELDS, ARGUMENTS)
    for name, (outcome, changes) in table.items()
    for change in changes
]


def outcome_of(model, change, **extra):
    """Return the result of a call as lists, or the error."""
    arguments = {"inputs": PROMPT, "max_new_tokens": 10, "do_sample": False, **change}
    if "generation_config" in change:
        arguments = {k: v for k, v in arguments.items() if k in ("inputs", *change)}
    torch.manual_seed(1)
    try:
        result = model.generate(**arguments, **extra)
    except Exception as error:
        return error
    return result


@pytest.mark.parametrize(
    ("name", "outcome", "change"), CASES, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(CASES)]
)
def test_as_stock_or_refused(models, name, outcome, change):
    stock, ours, spec = models
    got = outcome_of(ours, change, custom_generate=spec)
    if outcome == "refused":
        assert isinstance(got, InvalidInputError), got
        return
    wanted = outcome_of(stock, change)
    if isinstance(wanted, Exception):
        assert outcome == "either", wanted
        assert isinstance(got, (InvalidInputError, type(wanted))), got
        return
    assert not isinstance(got, Exception), got
    if isinstance(wanted, torch.Tensor):
        assert got.tolist() == wanted.tolist()
        return
    assert got.sequences.tolist() == wanted.sequences.tolist()
    for key in ("scores", "logits", "attentions", "hidden_states"):
        mine, theirs = getattr(got, key), getattr(wanted, key)
        assert (mine is None) == (theirs is None)
        for a, b in zip(mine or (), theirs or (), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


class Heard(BaseStreamer):
    def __init__(self):
        self.values: list[list[int]] = []

    def put(self, value):
        self.values.append(value.flatten().tolist())

    def end(self):
        self.values.append([-1])


@pytest.mark.parametrize("wrapped", [False, True], ids=["itself", "in a function of the user's"])
def test_the_streamer_arrives(models, wrapped):
    stock, ours, spec = models
    heard = Heard(), Heard()
    custom = (lambda model, input_ids, **rest: spec(model, input_ids, **rest)) if wrapped else spec
    ours.generate(PROMPT, max_new_tokens=5, do_sample=False, streamer=heard[0],
                  custom_generate=custom)
    stock.generate(PROMPT, max_new_tokens=5, do_sample=False, streamer=heard[1])
    assert heard[0].values == heard[1].values


def test_an_assistant_model_is_refused(models):
    stock, ours, spec = models
    with pytest.raises(InvalidInputError, match="assistant_model"):
        ours.generate(PROMPT, max_new_tokens=5, assistant_model=stock, custom_generate=spec)


def test_what_needs_the_tokenizer():
    """Stop strings and token healing, from the call, a config object or the model's own config."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    model = load_offloaded(demo_model(), dtype="float32")
    spec = SpecFit("prompt-lookup", policy="chain-2")
    inputs = tokenizer("It was a truth", return_tensors="pt")
    with offload_of(model):
        plain = model.generate(**inputs, max_new_tokens=20, do_sample=False)
        for change in (
            {"stop_strings": [" the"]},
            {"stop_strings": ["e", "zzz"], "stopping_criteria": StoppingCriteriaList(
                [StopStringCriteria(tokenizer, [" of"])])},
            {"token_healing": True},
        ):
            arguments = {"max_new_tokens": 20, "do_sample": False, "tokenizer": tokenizer, **change}
            want = model.generate(**inputs, **arguments)
            got = model.generate(**inputs, **arguments, custom_generate=spec)
            assert got.tolist() == want.tolist()
            assert got.shape[1] < plain.shape[1] or "token_healing" in change
        config = GenerationConfig(max_new_tokens=20, do_sample=False, stop_strings=[" the"])
        want = model.generate(**inputs, tokenizer=tokenizer, generation_config=config)
        got = model.generate(**inputs, tokenizer=tokenizer, generation_config=config,
                             custom_generate=spec)
        assert got.tolist() == want.tolist()


#: Settings that training or other programs leave in a checkpoint's files, and that change no text.
LEFTOVERS: list[tuple[str, dict[str, object]]] = [
    ("generation_config.json", {"use_cache": False}),
    ("generation_config.json", {"cache_implementation": "static"}),
    ("generation_config.json", {"cache_implementation": "hybrid"}),
    ("generation_config.json", {"output_attentions": True, "return_dict_in_generate": True}),
    ("generation_config.json", {"output_hidden_states": True, "return_dict_in_generate": True}),
    ("generation_config.json", {"output_scores": True, "return_dict_in_generate": True}),
    ("generation_config.json", {"prompt_lookup_num_tokens": 3}),
    ("generation_config.json", {"max_length": 20, "temperature": 0.7, "top_k": 20}),
    ("config.json", {"use_cache": False}),
    ("config.json", {"output_hidden_states": True}),
    ("config.json", {"output_attentions": True}),
    ("config.json", {"output_router_logits": True}),
    ("config.json", {"torch_dtype": "float32"}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("file", "left"), LEFTOVERS, ids=lambda v: str(v)[:60])
def test_what_files_leave_behind_changes_no_text(tiny_folder, tmp_path, file, left):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("qwen3_moe"), folder)
    place = folder / file
    content = json.loads(place.read_text()) if place.exists() else {}
    place.write_text(json.dumps({**content, **left}))
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load_offloaded(folder, expert_cache=0.5, dtype="float32")
    spec = SpecFit(f"lm:{tiny_folder('qwen3_moe')}", policy="chain-3")
    with offload_of(ours):
        want = outcome_of(stock, {})
        got = outcome_of(ours, {}, custom_generate=spec)
        plain = outcome_of(ours, {})
        # The caller's own wish is another matter, also where it comes in a config.
        wish = GenerationConfig(use_cache=False, max_new_tokens=4)
        if left.get("use_cache") is not False:
            with pytest.raises(InvalidInputError, match="use_cache"):
                ours.generate(PROMPT, generation_config=wish, custom_generate=spec)
    assert type(got) is type(want) is type(plain), (got, want, plain)
    if not isinstance(want, torch.Tensor):
        want, got = want.sequences, got.sequences
    assert got.tolist() == want.tolist()
