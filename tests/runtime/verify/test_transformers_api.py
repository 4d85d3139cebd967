"""What `generate` hands over is understood or refused, and caches of other kinds are refused."""

from __future__ import annotations

import copy

import pytest
import torch
from rounding import assert_same_to_rounding
from stock_routing import StockRouting
from tiny_models import tiny_model, tiny_prompt
from transformers import AutoConfig, DynamicCache, GenerationConfig, StaticCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache
from tree_decoding import Plain, TreeDecoder

from specfit_runtime.errors import InvalidInputError
from specfit_runtime.verify import TargetSession
from specfit_runtime.verify.transformers_api import (
    attention_layers,
    cache_argument,
    check_cache,
    keeping_past,
    new_cache,
    read_generate_arguments,
)

PROMPT = tiny_prompt(8, seed=2)


def generate(model, prompt, *, custom=None, **options):
    more = {} if custom is None else {"custom_generate": custom}
    options = {"do_sample": False, "max_new_tokens": 8, **options}
    return model.generate(prompt, pad_token_id=0, **more, **options)


class TestContinuing:
    """A cache that the user passes on from one call to the next."""

    def turns(self, model, custom, only_new):
        """Return the texts of three turns of a conversation and the cache they share."""
        cache = new_cache(model)
        text = PROMPT
        texts = []
        for turn in range(3):
            given = text[:, cache.get_seq_length() :] if only_new else text
            mask = torch.ones_like(text)
            out = generate(
                model,
                given,
                custom=custom and custom(),
                attention_mask=mask,
                **{cache_argument(model): cache},
            )
            text = torch.cat([text, out[:, given.shape[1] :]], 1)
            texts.append(text[0].tolist())
            text = torch.cat([text, tiny_prompt(5, seed=turn)], 1)
        return texts, cache

    @pytest.mark.parametrize("only_new", [False, True], ids=["whole", "new"])
    @pytest.mark.parametrize("windowed", ["qwen3_moe", "gpt_oss", "mixtral-sliding"])
    def test_a_conversation_goes_on_as_in_stock_generate(self, model_of, windowed, only_new):
        model = model_of(windowed)
        expected, theirs = self.turns(model, None, only_new)
        got, ours = self.turns(model, lambda: TreeDecoder(expected[-1]), only_new)
        assert got == expected
        assert ours.get_seq_length() == theirs.get_seq_length() == len(expected[-1]) - 1
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            assert one.keys.shape == other.keys.shape
            assert_same_to_rounding(one.keys, other.keys)
            assert not getattr(one, "record_past", False)

    def test_a_cache_left_by_assisted_decoding_is_trimmed(self, model_of):
        # Such a cache may still record its past, and so hold more than the window.
        model = model_of("mixtral-sliding")
        cache = new_cache(model)
        if not hasattr(cache.layers[0], "record_past"):
            pytest.skip("this version of Transformers cannot record what leaves the window")
        cache.activate_past_recording()
        reader = Plain(model, cache)
        reader.read(PROMPT[0].tolist() * 3)
        other = Plain(model)
        other.read(PROMPT[0].tolist() * 3)
        assert cache.layers[0].keys.shape[-2] > 7
        session = TargetSession(model, cache=cache, recorder=StockRouting(model))
        for _ in range(3):
            logits = session.verify([3, 4, 5], [-1, 0, 0]).logits
            session.commit([0, 2])
            other.read([3])
            assert_same_to_rounding(logits[2], other.read([5]).logits[0, -1])

    def test_a_prefill_in_chunks(self, model_of):
        model = model_of("qwen3_moe")
        expected = generate(model, PROMPT, attention_mask=torch.ones_like(PROMPT))
        got = generate(
            model,
            PROMPT,
            custom=TreeDecoder(expected[0].tolist()),
            attention_mask=torch.ones_like(PROMPT),
            prefill_chunk_size=3,
        )
        assert got.tolist() == expected.tolist()


class TestRefusals:
    """What the adapter does not pass over in silence."""

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"num_beams": 2}, "one sequence is decoded at a time.*num_return_sequences of 2"),
            ({"do_sample": True, "num_return_sequences": 3}, "of 3; call generate once per"),
            ({"use_cache": False}, "use_cache=False: draft trees need the cache"),
            ({"cache_implementation": "static"}, "a StaticCache cannot hold draft trees"),
            ({"cache_implementation": "offloaded"}, "an offloaded cache cannot hold draft"),
            ({"attention_mask": torch.tensor([[0] * 2 + [1] * 6])}, "mask hides tokens: padding"),
            ({"position_ids": torch.arange(1, 9)[None]}, "not those of consecutive tokens"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_options_of_generate(self, model_of, options, match):
        options = {"attention_mask": torch.ones_like(PROMPT), **options}
        with pytest.raises(InvalidInputError, match=match):
            generate(model_of("qwen3_moe"), PROMPT, custom=TreeDecoder(), **options)

    def test_several_prompts(self, model_of):
        both = torch.cat([PROMPT, PROMPT])
        with pytest.raises(InvalidInputError, match=r"shape \(2, 8\)"):
            generate(
                model_of("qwen3_moe"),
                both,
                custom=TreeDecoder(),
                attention_mask=torch.ones_like(both),
            )

    def test_embeddings_instead_of_tokens(self, model_of):
        model = model_of("qwen3_moe")
        with pytest.raises(InvalidInputError, match="generate was given inputs_embeds, which"):
            model.generate(
                inputs_embeds=model.get_input_embeddings()(PROMPT),
                custom_generate=TreeDecoder(),
                max_new_tokens=2,
                pad_token_id=0,
            )

    def test_a_prompt_that_holds_the_padding_token(self, model_of):
        # From which generate makes up a mask, when it is given none.
        model = model_of("qwen3_moe")
        prompt = torch.tensor([[5, 0, 7]])
        with pytest.raises(InvalidInputError, match="pad_token_id occurring in the prompt"):
            generate(model, prompt, custom=TreeDecoder(), eos_token_id=9)

    def test_a_prompt_that_says_nothing_new(self, model_of):
        model = model_of("qwen3_moe")
        reader = Plain(model)
        reader.read(PROMPT[0].tolist())
        with pytest.raises(InvalidInputError, match="the cache holds 8 tokens, input_ids 8"):
            read_generate_arguments(PROMPT, GenerationConfig(), {"cache": reader.cache})

    @pytest.mark.parametrize(
        ("ids", "arguments", "match"),
        [
            (torch.zeros(1, 0, dtype=torch.int64), {}, "the prompt is empty"),
            (PROMPT, {}, "generate prepared no cache"),
            (PROMPT, {"cache": 3}, "a int cannot hold draft trees"),
            (PROMPT, {"pixel_values": 1, "tongue": 2}, "given pixel_values, tongue, which"),
            (PROMPT, {"past_key_values": ()}, "a tuple cannot hold"),
        ],
    )
    def test_arguments(self, ids, arguments, match):
        with pytest.raises(InvalidInputError, match=match):
            read_generate_arguments(ids, GenerationConfig(), arguments)

    def test_arguments_that_are_none_are_as_if_not_given(self):
        prompt = read_generate_arguments(
            PROMPT,
            GenerationConfig(),
            {"past_key_values": DynamicCache(), "encoder_outputs": None, "attention_mask": None},
        )
        assert prompt.new_ids.tolist() == PROMPT.tolist()
        assert prompt.chunk is None

    def test_a_model_without_a_cache(self):
        with pytest.raises(InvalidInputError, match="takes neither cache nor past_key_values"):
            cache_argument(torch.nn.Linear(1, 1))


class TestCaches:
    """Which caches a branch can be taken out of."""

    def test_recurrent_layers(self):
        config = AutoConfig.for_model("qwen3_next", num_hidden_layers=4)
        with pytest.raises(InvalidInputError, match="is of type 'linear_attention'"):
            attention_layers(config)
        with pytest.raises(InvalidInputError, match="layer 0 of the cache is a LinearAttention"):
            check_cache(DynamicCache(config=config))

    def test_chunked_attention(self):
        config = AutoConfig.for_model("llama4_text", num_hidden_layers=4)
        with pytest.raises(InvalidInputError, match="is of type 'chunked_attention'"):
            attention_layers(config)

    def test_static_and_encoder_decoder_caches(self):
        config = AutoConfig.for_model("mixtral", num_hidden_layers=2)
        with pytest.raises(InvalidInputError, match="a StaticCache cannot hold"):
            check_cache(StaticCache(config=config, max_cache_len=8))
        both = EncoderDecoderCache(DynamicCache(), DynamicCache())
        with pytest.raises(InvalidInputError, match="a EncoderDecoderCache cannot hold"):
            check_cache(both)

    def test_layers_of_a_kind_that_is_not_known(self):
        class Unknown(DynamicLayer):
            pass

        cache = DynamicCache(config=AutoConfig.for_model("mixtral", num_hidden_layers=2))
        cache.layers[1] = Unknown()
        with pytest.raises(InvalidInputError, match="layer 1 of the cache is a Unknown"):
            check_cache(cache)

    def test_several_sequences(self, model_of):
        cache = DynamicCache()
        states = torch.zeros(2, 2, 3, 16)
        cache.update(states, states, 0)
        with pytest.raises(InvalidInputError, match="holds 2 sequences"):
            check_cache(cache)

    def test_windows_of_the_layers(self):
        windowed = {"sliding_window": 5, "num_hidden_layers": 2}
        assert attention_layers(AutoConfig.for_model("mixtral", **windowed)) == (
            ("sliding_attention", 5),
            ("sliding_attention", 5),
        )
        assert attention_layers(AutoConfig.for_model("gpt_oss", **windowed)) == (
            ("sliding_attention", 5),
            ("full_attention", None),
        )
        for unused in ("qwen3_moe", "olmoe", "deepseek_v3"):
            config = AutoConfig.for_model(unused, num_hidden_layers=2)
            assert attention_layers(config) == (("full_attention", None),) * 2
        with pytest.raises(InvalidInputError, match="sliding_window is 1"):
            attention_layers(AutoConfig.for_model("mixtral", sliding_window=1))

    def test_keeping_the_past_ends_however_it_ends(self, model_of):
        cache = Plain(model_of("gpt_oss")).cache
        before = [copy.copy(vars(layer)) for layer in cache.layers]
        with pytest.raises(KeyboardInterrupt):
            self.interrupted(cache, before)
        assert [vars(layer) for layer in cache.layers] == before

    @staticmethod
    def interrupted(cache, before):
        with keeping_past(cache, 4):
            assert [vars(layer) for layer in cache.layers] != before
            raise KeyboardInterrupt


def test_a_model_that_also_computes_its_routers_loss_takes_a_tree():
    model = tiny_model("mixtral", output_router_logits=True)
    session = TargetSession(model, recorder=StockRouting(model))
    session.prefill(PROMPT)
    assert session.verify([1, 2, 3], [-1, 0, 0]).logits.shape == (3, 160)


def test_only_the_hidden_states_asked_for_are_held(model_of):
    from transformers.utils import output_capturing

    if not hasattr(output_capturing, "selected_hidden_states"):
        pytest.skip("this version of Transformers returns all hidden states or none")
    model = model_of("qwen3_moe")
    asked = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: asked.append(kwargs.get("output_hidden_states")),
        with_kwargs=True,
    )
    try:
        for layers in ((), (2, 0, 2)):
            session = TargetSession(model, feature_layers=layers, recorder=StockRouting(model))
            features = session.prefill(PROMPT).features
            assert features is None if not layers else features.shape == (8, 3, 48)
    finally:
        hook.remove()
    assert asked == [None, [0, 2]]
    assert torch.equal(features[:, 0], features[:, 2])
