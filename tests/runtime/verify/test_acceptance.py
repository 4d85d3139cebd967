"""What is committed is what stock generation would have made, token for token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny_prompt
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from tree_decoding import TreeDecoder

from specfit_runtime.errors import InvalidInputError
from specfit_runtime.verify import accept, acceptance

PROMPT = tiny_prompt(9, seed=4)
NEW = 25


def stock(model, seed=0, **options):
    return generate(model, seed, None, **options)


def generate(model, seed, custom_generate, prompt=PROMPT, **options):
    torch.manual_seed(seed)
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    more = {} if custom_generate is None else {"custom_generate": custom_generate}
    return model.generate(
        prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0, **more, **options
    )


def assert_equals_stock(model, *, seeds=(0, 1), least=1.3, **options):
    for seed in seeds:
        expected = stock(model, seed, **options)
        decoder = TreeDecoder(expected[0].tolist(), seed)
        got = generate(model, seed, decoder, **options)
        assert got.tolist() == expected.tolist()
        # Trees that are never right would prove little.
        assert got.shape[1] - PROMPT.shape[1] >= least * decoder.passes


#: What users ask of `generate`, each of which must act inside an accepted path too.
OPTIONS = {
    "greedy": {},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": list(range(0, 160, 3))},
    "bad_words": {"bad_words_ids": [[t] for t in range(0, 160, 2)] + [[5, 7], [11, 3]]},
    "sequence_bias": {"sequence_bias": {(7,): 3.0, (8, 9): -2.0}},
    "forced_eos": {"forced_eos_token_id": 3, "max_new_tokens": 11},
    "sampled": {"do_sample": True},
    "temperature": {"do_sample": True, "temperature": 3.0},
    "top_k": {"do_sample": True, "temperature": 4.0, "top_k": 5},
    "top_p": {"do_sample": True, "temperature": 4.0, "top_p": 0.6},
    "min_p": {"do_sample": True, "temperature": 4.0, "min_p": 0.1},
    "typical_p": {"do_sample": True, "temperature": 4.0, "typical_p": 0.7},
    "all_at_once": {
        "do_sample": True,
        "temperature": 2.0,
        "top_k": 20,
        "top_p": 0.8,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
    },
    "guidance": {"guidance_scale": 1.5},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_generation_option_acts_as_in_stock_generate(model_of, options):
    seeds = (0, 1) if options.get("do_sample") else (0,)
    assert_equals_stock(model_of("qwen3_moe"), seeds=seeds, **options)


@pytest.mark.parametrize("do_sample", [False, True])
def test_every_family_decodes_as_stock_generate(model_of, kind, do_sample):
    options = {"temperature": 1.5} if do_sample else {}
    assert_equals_stock(model_of(kind), seeds=(0,), do_sample=do_sample, **options)


@pytest.mark.parametrize("n", [1, 2, 5, 11])
def test_max_new_tokens_is_never_overshot(model_of, n):
    model = model_of("qwen3_moe")
    # The tree holds the whole continuation: without the limit, all of it would be accepted.
    text = stock(model, max_new_tokens=20)[0].tolist()

    class Continuation(TreeDecoder):
        def tree(self, root, length, vocab):
            chain = [root, *text[length : length + 20]]
            return chain, list(range(-1, len(chain) - 1))

    for options in ({"max_new_tokens": n}, {"max_length": 9 + n, "max_new_tokens": None}):
        got = generate(model, 0, Continuation(), **options)
        assert got[0].tolist() == text[: 9 + n]


def test_an_end_token_within_an_accepted_path_ends_the_text(model_of):
    model = model_of("qwen3_moe")
    text = stock(model)[0].tolist()
    for at in (9, 10, 15, 21):
        end = text[at]
        expected = stock(model, eos_token_id=end)
        assert expected[0].tolist() == text[: text.index(end, 9) + 1]
        for seed in range(3):
            got = generate(model, 0, TreeDecoder(text, seed, 20), eos_token_id=end)
            assert got.tolist() == expected.tolist()


class Spells(StoppingCriteria):
    """Stops as soon as the text ends with some tokens, and keeps all it was asked about."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.asked = []

    def __call__(self, input_ids, scores, **kwargs):
        self.asked.append(input_ids[0].tolist())
        ends = input_ids[0, -len(self.tokens) :].tolist() == self.tokens
        return torch.full((input_ids.shape[0],), ends)


class Remembers(LogitsProcessor):
    """Depends on every score that it has ever been given, like processors that keep a state."""

    def __init__(self):
        self.asked = []
        self.state = 0.0

    def __call__(self, input_ids, scores):
        self.asked.append(input_ids[0].tolist())
        self.state = 0.5 * self.state + scores
        scores += self.state  # in place: the caller's logits must not change
        return scores


@pytest.mark.parametrize("do_sample", [False, True])
def test_processors_and_criteria_see_each_position_once_and_in_order(model_of, do_sample):
    model = model_of("qwen3_moe")
    asked = []
    for custom in (None, TreeDecoder, TreeDecoder):
        processor = Remembers()
        criterion = Spells([1000])
        decoder = custom and custom(asked[-1][2], seed=len(asked))
        got = generate(
            model,
            5,
            decoder,
            do_sample=do_sample,
            logits_processor=LogitsProcessorList([processor]),
            stopping_criteria=StoppingCriteriaList([criterion]),
        )
        asked.append((processor.asked, criterion.asked, got[0].tolist()))
    texts = [asked[0][2][:length] for length in range(9, 9 + NEW)]
    assert asked[0] == (texts, [*texts[1:], asked[0][2]], asked[0][2])
    assert asked[1] == asked[0] == asked[2]


def test_a_stopping_criterion_of_the_users_stops_inside_an_accepted_path(model_of):
    model = model_of("qwen3_moe")
    text = stock(model)[0].tolist()
    for at in (10, 13, 20):
        words = text[at : at + 2]
        runs = [
            generate(model, 0, custom, stopping_criteria=StoppingCriteriaList([Spells(words)]))
            for custom in (None, TreeDecoder(text, 1), TreeDecoder(text, 2))
        ]
        assert runs[0].shape[1] <= at + 2
        assert runs[1].tolist() == runs[0].tolist() == runs[2].tolist()


def test_criteria_see_the_scores_so_far():
    seen = []

    class Looks(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            seen.append([score.argmax().item() for score in scores])
            return torch.tensor([False])

    logits = torch.eye(4)[[1, 2, 3]]
    before = (torch.eye(4)[[0]],)
    result = accept(
        logits,
        [0, 1, 2],
        [-1, 0, 1],
        torch.tensor([[3, 0]]),
        stopping_criteria=StoppingCriteriaList([Looks()]),
        scores=before,
    )
    assert result.tokens == (1, 2, 3)
    assert seen == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [score.argmax().item() for score in result.scores] == [1, 2, 3]


def test_the_walk_reports_where_the_target_went():
    #        0
    #      1   2
    #    3
    logits = torch.zeros(4, 6)
    tokens, parent = [0, 1, 2, 3], [-1, 0, 0, 1]
    logits[0, 1], logits[1, 4], logits[2, 5], logits[3, 5] = 1, 1, 1, 1
    ids = torch.tensor([[9, 0]])
    result = accept(logits, tokens, parent, ids)
    assert (result.rows, result.tokens) == ((0, 1), (1, 4))
    assert result.committed_ids.tolist() == [[9, 0, 1, 4]]
    assert not result.finished
    # To the node of a drafted token that ends the text the walk does not go.
    result = accept(logits, tokens, parent, ids, eos_token_ids={1})
    assert (result.rows, result.tokens) == ((0,), (1,))
    assert result.finished
    result = accept(logits, tokens, parent, ids, max_new_tokens=1)
    assert (result.tokens, result.finished) == ((1,), True)
    result = accept(logits, tokens, parent, ids, max_new_tokens=2)
    assert (result.tokens, result.finished) == ((1, 4), True)


def test_scores_are_float32_whatever_the_model_computes_in(model_of):
    dtypes = []

    class Looks(LogitsProcessor):
        def __call__(self, input_ids, scores):
            dtypes.append((scores.dtype, scores.shape, input_ids.dtype, input_ids.shape))
            return scores

    for dtype in (torch.bfloat16, torch.float64):
        accept(
            torch.zeros(1, 7, dtype=dtype),
            [3],
            [-1],
            torch.tensor([[5, 3]]),
            logits_processor=LogitsProcessorList([Looks()]),
        )
    assert dtypes == [(torch.float32, (1, 7), torch.int64, (1, 2))] * 2


def test_the_given_logits_are_left_alone():
    logits = torch.randn(1, 5)
    before = logits.clone()
    accept(
        logits,
        [0],
        [-1],
        torch.tensor([[0]]),
        logits_processor=LogitsProcessorList([Remembers()]),
    )
    assert torch.equal(logits, before)


class TestBugs:
    """Rules of acceptance found elsewhere that change the text."""

    def test_a_repetition_penalty_left_out_of_verification_shows(self, model_of, monkeypatch):
        # The processors applied to the bonus token alone.
        plain = acceptance.accept

        def raw(logits, tokens, parent, ids, *, logits_processor, **how):
            return plain(logits, tokens, parent, ids, logits_processor=None, **how)

        self.expect_difference(model_of("qwen3_moe"), monkeypatch, raw, repetition_penalty=1.8)

    def test_processors_that_see_the_text_without_the_path_show(self, model_of, monkeypatch):
        plain = acceptance.accept

        def stale(logits, tokens, parent, ids, *, logits_processor, **how):
            fixed = LogitsProcessorList([lambda _, scores: logits_processor(ids, scores)])
            return plain(logits, tokens, parent, ids, logits_processor=fixed, **how)

        self.expect_difference(model_of("qwen3_moe"), monkeypatch, stale, repetition_penalty=1.8)

    def test_criteria_asked_once_per_pass_overshoot(self, model_of, monkeypatch):
        plain = acceptance.accept

        def late(logits, tokens, parent, ids, *, stopping_criteria, **how):
            result = plain(logits, tokens, parent, ids, **how)
            finished = bool(stopping_criteria(result.committed_ids, None).all())
            return acceptance.Accepted(
                result.rows, result.tokens, result.committed_ids, finished, None
            )

        self.expect_difference(model_of("qwen3_moe"), monkeypatch, late, max_new_tokens=10)

    @staticmethod
    def expect_difference(model, monkeypatch, wrong, **options):
        import tree_decoding

        expected = stock(model, **options)

        def runs():
            return [
                generate(model, 0, TreeDecoder(expected[0].tolist(), seed), **options).tolist()
                for seed in range(4)
            ]

        assert all(run == expected.tolist() for run in runs())
        with monkeypatch.context() as patch:
            patch.setattr(tree_decoding, "accept", wrong)
            assert any(run != expected.tolist() for run in runs())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parent": [-1, -1]}, "node 1 has no parent"),
        ({"logits": torch.zeros(3, 5)}, "not of one tree"),
        ({"logits": torch.zeros(5)}, "not of one tree"),
        ({"tokens": [0]}, "not of one tree"),
        ({"committed_ids": torch.zeros(1, 0, dtype=torch.int64)}, "at least one token"),
        ({"committed_ids": torch.zeros(2, 3, dtype=torch.int64)}, "one sequence"),
        ({"committed_ids": torch.tensor([[0, 3]])}, "ends with token 3 but the root holds 0"),
        ({"max_new_tokens": 0}, "commits at least one token"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(change, match):
    arguments = {
        "logits": torch.zeros(2, 5),
        "tokens": [0, 1],
        "parent": [-1, 0],
        "committed_ids": torch.tensor([[3, 0]]),
        **change,
    }
    with pytest.raises(InvalidInputError, match=match):
        accept(**arguments)


def test_numpy_integers_are_welcome():
    logits = torch.eye(3)[[1, 2]]
    tokens, parent = np.array([0, 1]), np.array([-1, 0])
    assert accept(logits, tokens, parent, torch.tensor([[0]])).tokens == (1, 2)
