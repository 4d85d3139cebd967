"""A tree pass gives every node what plain decoding would, and leaves the cache as it should be."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounding import FP32, assert_same_to_rounding, relative
from stock_routing import StockRouting
from tiny_models import tiny_config, tiny_model, tiny_prompt
from transformers import AutoConfig, DynamicCache
from tree_decoding import Plain, path_to, random_parents

from specfit_runtime import load_offloaded, offload_of
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.verify import TargetSession, session, tree_mask
from specfit_runtime.verify.context import context_length
from specfit_runtime.verify.transformers_api import cache_argument

VOCABULARY = 160
#: Of hidden states in a model of double precision. The stock classes normalise and take the softmax
#: in single precision all the same, so now and then a value is rounded the other way.
FP64 = 1e-6

few = settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])


def new_session(model, **options):
    return TargetSession(model, recorder=StockRouting(model), **options)


def plain_nodes(reader: Plain, tokens, parent):
    """Return the plain outputs after each node and the readers that are there."""
    readers = []
    outputs = []
    for token, above in zip(tokens, parent, strict=True):
        reader_here = (reader if above < 0 else readers[above]).branch()
        outputs.append(reader_here.read([token]))
        readers.append(reader_here)
    return outputs, readers


def assert_same_cache(ours, theirs, tolerance: float) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert one.get_seq_length() == other.get_seq_length()
        for part in ("keys", "values"):
            assert getattr(one, part).shape == getattr(other, part).shape
            assert relative(getattr(one, part), getattr(other, part)) <= tolerance


@few
@given(seed=st.integers(0, 2**32 - 1), prefix=st.integers(1, 24), n=st.integers(2, 10))
def test_a_tree_pass_equals_reading_each_path_token_by_token(
    model_of, kind, attention, seed, prefix, n
):
    check_tree_pass(model_of, kind, attention, seed, prefix, n)


@pytest.mark.slow
@settings(few, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), prefix=st.integers(1, 80), n=st.integers(2, 40))
def test_large_trees_behind_long_prefixes_are_no_different(
    model_of, kind, attention, seed, prefix, n
):
    check_tree_pass(model_of, kind, attention, seed, prefix, n)


def check_tree_pass(model_of, kind, attention, seed, prefix, n):
    model = model_of(kind, attention)
    rng = np.random.default_rng(seed)
    prompt = tiny_prompt(prefix, seed % 1000)
    tokens = rng.integers(VOCABULARY, size=n).tolist()
    parent = random_parents(n, rng)

    target = new_session(model, feature_layers=(3, 1))
    first = target.prefill(prompt)
    result = target.verify(tokens, parent)

    reader = Plain(model, hidden=True)
    outputs = reader.read(prompt[0].tolist())
    assert relative(first.logits[0], outputs.logits[0, -1]) <= FP32
    assert first.logits.shape == (1, VOCABULARY)
    assert first.features.shape == (prefix, 2, model.config.hidden_size)
    assert relative(first.features[:, 1], outputs.hidden_states[1][0]) <= FP32
    for v, outputs in enumerate(plain_nodes(reader, tokens, parent)[0]):
        logits = outputs.logits[0, -1]
        assert relative(result.logits[v], logits) <= FP32
        assert result.logits[v].argmax() == logits.argmax()
        for at, i in enumerate((3, 1)):
            assert relative(result.features[v, at], outputs.hidden_states[i][0, -1]) <= FP32


def test_a_tree_pass_is_exact_in_double_precision(model_of, kind):
    model = model_of(kind, "eager", torch.float64)
    rng = np.random.default_rng(3)
    for prefix in (5, 20):
        n = 8
        tokens = rng.integers(VOCABULARY, size=n).tolist()
        parent = random_parents(n, rng)
        target = new_session(model, feature_layers=(2, 3))
        prompt = tiny_prompt(prefix, prefix)
        target.prefill(prompt)
        result = target.verify(tokens, parent)
        assert result.features.dtype == torch.float64
        reader = Plain(model, hidden=True)
        reader.read(prompt[0].tolist())
        for v, outputs in enumerate(plain_nodes(reader, tokens, parent)[0]):
            for at, i in enumerate((2, 3)):
                states = outputs.hidden_states[i][0, -1]
                assert relative(result.features[v, at], states) <= FP64


def test_the_routing_of_every_node_is_reported(model_of, kind):
    model = model_of(kind)
    routing = StockRouting(model)
    rng = np.random.default_rng(8)
    tokens, parent = rng.integers(VOCABULARY, size=8).tolist(), random_parents(8, rng)
    prompt = tiny_prompt(9)
    target = TargetSession(model, recorder=routing)
    first = target.prefill(prompt)
    result = target.verify(tokens, parent)
    n_layers = len(routing.layers)
    assert first.experts.shape == (9, n_layers, 2)
    assert result.experts.shape == (8, n_layers, 2)
    assert result.experts.dtype == np.int32
    for v in range(8):
        path = [tokens[u] for u in path_to(v, parent)]
        with routing.recording() as record:
            Plain(model).read([*prompt[0].tolist(), *path])
        assert (record.experts()[:9] == first.experts).all()
        assert (record.experts()[-1] == result.experts[v]).all()


def test_an_offloaded_model_records_its_own_routing(model_of, tiny_folder):
    stock = model_of("mixtral", "sdpa")
    with pytest.raises(InvalidInputError, match="load_offloaded"):
        TargetSession(stock)
    offloaded = load_offloaded(tiny_folder("mixtral"), expert_cache=2)
    rng = np.random.default_rng(1)
    tokens, parent = rng.integers(VOCABULARY, size=12).tolist(), random_parents(12, rng)
    with offload_of(offloaded):
        ours, theirs = TargetSession(offloaded), new_session(stock)
        for result, expected in (
            (ours.prefill(tiny_prompt(9)), theirs.prefill(tiny_prompt(9))),
            (ours.verify(tokens, parent), theirs.verify(tokens, parent)),
        ):
            assert_same_to_rounding(result.logits, expected.logits)
            assert (result.experts == expected.experts).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_single_nodes_are_bitwise_what_generate_computes(model_of, kind, attention, dtype):
    """One model, its weights where they are, and the same shapes: so the same bits everywhere."""
    model = model_of(kind, attention, dtype)
    prompt = tiny_prompt(11)
    stock = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=4,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    target = new_session(model)
    logits = [target.prefill(prompt).logits]
    for token in stock.sequences[0, 11:-1].tolist():
        logits.append(target.verify([token], [-1]).logits)
        target.commit([0])
    assert logits[0].dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(logits, stock.logits, strict=True))


@pytest.mark.parametrize("chunk", [3, 64])
def test_a_prompt_in_chunks_is_the_same_prompt(model_of, kind, chunk):
    model = model_of(kind)
    prompt = tiny_prompt(11)
    whole = new_session(model, feature_layers=(1,))
    parts = new_session(model, feature_layers=(1,))
    one, other = whole.prefill(prompt), parts.prefill(prompt, chunk=chunk)
    assert relative(other.logits, one.logits) <= FP32
    assert relative(other.features, one.features) <= FP32
    assert (other.experts == one.experts).all()
    assert_same_cache(parts.cache, whole.cache, FP32)


@few
@given(seed=st.integers(0, 2**32 - 1), prefix=st.integers(1, 20), n=st.integers(1, 12))
def test_a_committed_path_leaves_the_cache_of_plain_decoding(model_of, kind, seed, prefix, n):
    model = model_of(kind)
    rng = np.random.default_rng(seed)
    tokens, parent = rng.integers(VOCABULARY, size=n).tolist(), random_parents(n, rng)
    prompt = tiny_prompt(prefix)
    target = new_session(model)
    target.prefill(prompt)
    target.verify(tokens, parent)
    path = path_to(int(rng.integers(n)), parent)
    target.commit(path)
    assert target.length == prefix + len(path)
    reader = Plain(model)
    reader.read(prompt[0].tolist())
    for u in path:
        reader.read([tokens[u]])
    assert_same_cache(target.cache, reader.cache, FP32)


@pytest.mark.parametrize("cycles", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_many_cycles_of_trees_equal_plain_decoding(model_of, kind, cycles):
    target, reader = check_cycles(model_of(kind), cycles)
    assert_same_cache(target.cache, reader.cache, FP32)


@pytest.mark.parametrize("windowed", ["gpt_oss", "mixtral-sliding"])
def test_a_cache_that_keeps_what_the_window_hides_is_no_different(model_of, windowed):
    # One made without a configuration.
    check_cycles(model_of(windowed), 12, DynamicCache())


def check_cycles(model, cycles, cache=None):
    rng = np.random.default_rng(11)
    target = new_session(model, cache=cache)
    reader = Plain(model)
    prompt = tiny_prompt(5)
    target.prefill(prompt)
    reader.read(prompt[0].tolist())
    length, rejected = 5, 0
    for _ in range(cycles):
        n = int(rng.integers(1, 10))
        tokens, parent = rng.integers(VOCABULARY, size=n).tolist(), random_parents(n, rng)
        result = target.verify(tokens, parent)
        path = path_to(int(rng.integers(n)), parent)
        target.commit(path)
        length += len(path)
        rejected += n - len(path)
        assert target.length == length
        for u in path:
            outputs = reader.read([tokens[u]])
            assert relative(result.logits[u], outputs.logits[0, -1]) <= FP32
    assert rejected > cycles  # or nothing was tested
    return target, reader


def test_a_tree_larger_than_the_window_rejects_without_losing_keys(model_of):
    # All but the root are rejected, again and again: without a record of the past, a window of 8
    # would be full of rejected keys after a tree of 20.
    for kind in ("gpt_oss", "mixtral-sliding", "qwen3_moe-sliding"):
        model = model_of(kind)
        target = new_session(model)
        reader = Plain(model)
        prompt = tiny_prompt(12)
        target.prefill(prompt)
        reader.read(prompt[0].tolist())
        for step in range(10):
            tokens = [(7 * step + 3 * v) % VOCABULARY for v in range(20)]
            result = target.verify(tokens, list(range(-1, 19)))
            target.commit([0])
            outputs = reader.read(tokens[:1])
            assert relative(result.logits[0], outputs.logits[0, -1]) <= FP32
        assert_same_cache(target.cache, reader.cache, FP32)


def test_prefill_may_follow_decoding(model_of, kind):
    model = model_of(kind)
    target, reader = new_session(model), Plain(model)
    text = tiny_prompt(30)[0].tolist()
    target.prefill(torch.tensor([text[:9]]))
    target.verify([text[9], 1, text[10]], [-1, 0, 0])
    target.commit([0, 2])
    result = target.prefill(torch.tensor([text[11:]]))
    reader.read(text[:11])
    outputs = reader.read(text[11:])
    assert relative(result.logits[0], outputs.logits[0, -1]) <= FP32
    assert_same_cache(target.cache, reader.cache, FP32)


@pytest.mark.parametrize("windowed", ["qwen3_moe", "gpt_oss"])
def test_a_pass_in_inference_mode_is_committed_outside_of_it(model_of, windowed):
    # Tensors made in inference mode can be written to in inference mode only.
    target = new_session(model_of(windowed))
    reader = Plain(model_of(windowed))
    prompt = tiny_prompt(12)
    with torch.inference_mode():
        target.prefill(prompt)
        target.verify([1, 2, 3, 4], [-1, 0, 0, 2])
    target.commit([0, 2, 3])
    reader.read([*prompt[0].tolist(), 1, 3, 4])
    assert_same_cache(target.cache, reader.cache, FP32)
    target.verify([5, 6], [-1, 0])
    target.commit([0])
    reader.read([5])
    assert_same_cache(target.cache, reader.cache, FP32)


def test_a_chain_prefix_is_kept_by_slicing(model_of):
    target = new_session(model_of("qwen3_moe"))
    target.prefill(tiny_prompt(6))
    target.verify([1, 2, 3, 4], [-1, 0, 1, 2])
    before = [layer.keys.data_ptr() for layer in target.cache.layers]
    target.commit([0, 1])
    assert [layer.keys.data_ptr() for layer in target.cache.layers] == before
    assert target.cache.layers[0].keys.shape[-2] == 8


class TestInterrupts:
    """Whatever stops a pass, and wherever, the committed text is still there."""

    @pytest.fixture(params=["qwen3_moe", "gpt_oss", "mixtral-sliding"])
    def model(self, request, model_of):
        return model_of(request.param)

    @staticmethod
    def interrupting(model, layer: int, error: type[BaseException]):
        """Make decoder layer ``layer`` raise once it has appended to the cache."""

        def stop(module, args, output):
            raise error

        return model.model.layers[layer].self_attn.register_forward_hook(stop)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("layer", [0, 1, 2])
    @pytest.mark.parametrize("n", [1, 12])
    def test_a_verification_that_is_interrupted_is_rolled_back(self, model, layer, n, error):
        target, reader = new_session(model), Plain(model)
        prompt = tiny_prompt(13)
        target.prefill(prompt)
        reader.read(prompt[0].tolist())
        before = [getattr(x, "sliding_window", None) for x in target.cache.layers]
        hook = self.interrupting(model, layer, error)
        try:
            with pytest.raises(error):
                target.verify(list(range(n)), [-1, *[0] * (n - 1)])
        finally:
            hook.remove()
        target.rollback()  # once more does no harm
        assert target.length == 13
        assert before == [getattr(x, "sliding_window", None) for x in target.cache.layers]
        assert not any(getattr(x, "record_past", False) for x in target.cache.layers)
        assert_same_cache(target.cache, reader.cache, 0.0)
        result = target.verify([5, 6, 7], [-1, 0, 0])
        target.commit([0, 2])
        reader.read([5])
        assert relative(result.logits[2], reader.read([7]).logits[0, -1]) <= FP32

    @pytest.mark.parametrize("layer", [0, 2])
    @pytest.mark.parametrize("held", [0, 11])
    def test_a_prefill_that_is_interrupted_is_rolled_back(self, model, layer, held):
        target, reader = new_session(model), Plain(model)
        text = tiny_prompt(30)[0].tolist()
        if held:
            target.prefill(torch.tensor([text[:held]]))
            reader.read(text[:held])
        hook = self.interrupting(model, layer, KeyboardInterrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                target.prefill(torch.tensor([text[held:]]))
        finally:
            hook.remove()
        assert target.length == held
        result = target.prefill(torch.tensor([text[held:]]))
        outputs = reader.read(text[held:])
        assert torch.equal(result.logits[0], outputs.logits[0, -1])
        assert_same_cache(target.cache, reader.cache, 0.0)

    def test_a_commit_that_is_interrupted_can_be_rolled_back(self, model, monkeypatch):
        target, reader = new_session(model), Plain(model)
        prompt = tiny_prompt(13)
        target.prefill(prompt)
        reader.read(prompt[0].tolist())
        target.verify([1, 2, 3, 4], [-1, 0, 0, 1])
        from specfit_runtime.verify import compaction

        calls = []

        def move(*args):
            calls.append(args)
            if len(calls) == 4:  # values of the second layer
                raise KeyboardInterrupt
            return plain_move(*args)

        plain_move = compaction._move
        monkeypatch.setattr(compaction, "_move", move)
        with pytest.raises(KeyboardInterrupt):
            target.commit([0, 2])
        monkeypatch.undo()
        assert target.length == 13
        target.rollback()
        assert_same_cache(target.cache, reader.cache, 0.0)


class TestBugs:
    """The mistakes that a tree pass invites, each of which must show."""

    def test_a_boolean_mask_in_eager_attention_shows(self, model_of, monkeypatch):
        # It would be added to the scores as 0 and 1, without any error.
        self.expect_wrong(
            model_of("qwen3_moe"),
            monkeypatch,
            session,
            "attention_mask",
            lambda seen, implementation, **how: tree_mask.attention_mask(seen, "sdpa", **how),
        )

    def test_positions_that_count_nodes_instead_of_depth_show(self, model_of, monkeypatch):
        self.expect_wrong(
            model_of("qwen3_moe"),
            monkeypatch,
            tree_mask.TreeShape,
            "position_ids",
            lambda shape, prefix, device: torch.arange(prefix, prefix + shape.n_nodes)[None],
        )

    def test_a_causal_mask_over_the_nodes_shows(self, model_of, monkeypatch):
        plain = tree_mask.TreeShape.visible

        def causal(shape, prefix, **how):
            return plain(tree_mask.TreeShape.of(range(-1, shape.n_nodes - 1)), prefix, **how)

        self.expect_wrong(
            model_of("qwen3_moe", "sdpa"), monkeypatch, tree_mask.TreeShape, "visible", causal
        )

    def test_a_forgotten_window_shows(self, model_of, monkeypatch):
        plain = tree_mask.TreeShape.visible

        def unlimited(shape, prefix, *, kept, window):
            return plain(shape, kept)

        for kind in ("mixtral-sliding", "gpt_oss"):
            self.expect_wrong(
                model_of(kind), monkeypatch, tree_mask.TreeShape, "visible", unlimited
            )

    def test_sliding_layers_that_drop_their_past_show(self, model_of, monkeypatch):
        from contextlib import nullcontext

        from specfit_runtime.verify import transformers_api

        with monkeypatch.context() as patch:
            patch.setattr(transformers_api, "keeping_past", lambda cache, n: nullcontext())
            target = new_session(model_of("mixtral-sliding"))
            target.prefill(tiny_prompt(20))
            target.verify([1, 2, 3], [-1, 0, 0])
            with pytest.raises(InvalidInputError, match="keys, not the 7 before the pass and its"):
                target.commit([0, 2])

    @staticmethod
    def expect_wrong(model, monkeypatch, owner, name, replacement) -> None:
        tokens, parent = [5, 17, 99, 3, 42, 8], [-1, 0, 0, 1, 2, 4]
        prompt = tiny_prompt(20)
        reader = Plain(model)
        reader.read(prompt[0].tolist())
        theirs = torch.stack(
            [outputs.logits[0, -1] for outputs in plain_nodes(reader, tokens, parent)[0]]
        )

        def difference() -> float:
            target = new_session(model)
            target.prefill(prompt)
            return relative(target.verify(tokens, parent).logits, theirs)

        assert difference() <= FP32
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            assert difference() > 0.01


class TestRefusals:
    """What a session does not take."""

    @pytest.fixture
    def target(self, model_of):
        target = new_session(model_of("qwen3_moe"))
        target.prefill(tiny_prompt(4))
        return target

    def test_an_empty_prompt(self, target):
        with pytest.raises(InvalidInputError, match="the prompt is empty"):
            target.prefill(torch.zeros((1, 0), dtype=torch.int64))

    def test_several_sequences(self, target):
        with pytest.raises(InvalidInputError, match=r"shape \(2, 3\); give one sequence"):
            target.prefill(torch.ones((2, 3), dtype=torch.int64))

    @pytest.mark.parametrize("token", [-1, VOCABULARY])
    def test_a_token_that_the_model_does_not_have(self, target, token):
        with pytest.raises(InvalidInputError, match=f"token {token} is none of the model's"):
            target.verify([1, token], [-1, 0])
        with pytest.raises(InvalidInputError, match="they are 0 to 159"):
            target.prefill(torch.tensor([[3, token]]))

    def test_a_node_without_its_parent(self, target):
        with pytest.raises(InvalidInputError, match="node 2 has no parent"):
            target.verify([1, 2, 3], [-1, 0, -1])
        assert target.length == 4

    def test_tokens_and_parents_of_other_numbers(self, target):
        with pytest.raises(InvalidInputError, match="2 tokens for 3 parents"):
            target.verify([1, 2], [-1, 0, 0])

    @pytest.mark.parametrize("rows", [[], [1], [0, 2, 1], [0, 3], [0, 1, 1], [0, 9], [0, -1]])
    def test_rows_that_are_no_path(self, target, rows):
        target.verify([1, 2, 3, 4], [-1, 0, 0, 1])
        with pytest.raises(InvalidInputError, match="rows"):
            target.commit(rows)
        target.commit([0, 1, 3])
        assert target.length == 7

    def test_a_commit_without_a_verification_and_the_reverse(self, target):
        with pytest.raises(InvalidInputError, match="verify a tree first"):
            target.commit([0])
        target.verify([1], [-1])
        for call in (lambda: target.verify([1], [-1]), lambda: target.prefill(tiny_prompt(2))):
            with pytest.raises(InvalidInputError, match="neither committed nor rolled back"):
                call()
        assert target.length == 4
        target.rollback()
        assert target.length == 4
        target.verify([1], [-1])

    def test_a_chunk_of_nothing(self, target):
        with pytest.raises(InvalidInputError, match="chunk = 0"):
            target.prefill(tiny_prompt(2), chunk=0)

    @pytest.mark.parametrize("layer", [-1, 4])
    def test_a_feature_layer_that_does_not_exist(self, model_of, layer):
        with pytest.raises(InvalidInputError, match=f"feature layer {layer} does not exist"):
            new_session(model_of("qwen3_moe"), feature_layers=(1, layer))

    def test_a_cache_of_another_model(self, model_of):
        other = Plain(tiny_model("qwen3_moe", num_hidden_layers=2))
        other.read([1, 2])
        with pytest.raises(InvalidInputError, match="2 layers but the model 3"):
            new_session(model_of("qwen3_moe"), cache=other.cache)

    def test_attention_that_takes_no_tree(self, model_of):
        model = copy.copy(model_of("qwen3_moe"))
        model.config = copy.deepcopy(model.config)
        model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(InvalidInputError, match="'flash_attention_2' cannot verify a tree"):
            new_session(model)


#: Rotary positions of every type, with an original context that the texts below cross.
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "long_factor": [2.0] * 6,
        "short_factor": [1.0] * 6,
    },
}


class TestBeyondTheStatedContext:
    @pytest.mark.parametrize("rope_type", ROPES)
    def test_trees_are_what_token_by_token_gives(self, rope_type):
        rope = {"rope_type": rope_type, "rope_theta": 100.0, **ROPES[rope_type]}
        model = tiny_model("mixtral", max_position_embeddings=16, rope_parameters=rope)
        # Once with what a longer text left in the model, once without.
        for length in (30, 14):
            stock = tiny_model("mixtral", max_position_embeddings=16, rope_parameters=rope)
            ids = tiny_prompt(length)
            target = new_session(model)
            target.prefill(ids)
            path = [3, 5, 7, 11]
            result = target.verify([3, 9, 5, 7, 2, 11], [-1, 0, 0, 2, 2, 3])
            held = {cache_argument(stock): DynamicCache(config=stock.config)}
            with torch.no_grad():
                stock(ids, use_cache=True, **held)
                for row, token in zip((0, 2, 3, 5), path, strict=True):
                    out = stock(torch.tensor([[token]]), use_cache=True, **held)
                    torch.testing.assert_close(
                        result.logits[row], out.logits[0, -1], atol=1e-4, rtol=1e-4
                    )
            target.commit([0, 2, 3, 5])
            again = target.verify([1, 2], [-1, 0])
            with torch.no_grad():
                out = stock(torch.tensor([[1]]), use_cache=True, **held)
            torch.testing.assert_close(again.logits[0], out.logits[0, -1], atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("rope_type", ROPES)
    def test_the_context_is_what_the_scaling_reaches(self, rope_type):
        rope = {"rope_type": rope_type, "rope_theta": 100.0, **ROPES[rope_type]}
        config = tiny_config("mixtral", max_position_embeddings=16, rope_parameters=rope)
        assert context_length(config) == (16 if rope_type == "default" else 64)

    def test_other_names_and_none(self):
        assert context_length(AutoConfig.for_model("gpt2", n_positions=77)) == 77
        assert context_length(AutoConfig.for_model("mpt", max_seq_len=78)) == 78
        assert context_length(AutoConfig.for_model("bloom")) is None
        nested = {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
        config = AutoConfig.for_model(
            "gemma3_text", max_position_embeddings=100, rope_parameters=nested
        )
        assert context_length(config) == 800
