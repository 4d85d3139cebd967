"""A language model as drafter: its trees, its vocabulary, and that it leaves the target alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from drafter_cases import Text, draft, path_to, whole_tree
from rounding import PROBABILITY, assert_same_to_rounding
from stock_models import load_stock
from tiny_drafters import tiny_lm
from tiny_models import tiny_checkpoint, tiny_model, tiny_prompt
from transformers import GPT2Config, GPT2LMHeadModel

from specfit_runtime.drafters import CausalLmDrafter, make_drafter
from specfit_runtime.errors import CheckpointError, DrafterError, InvalidInputError
from specfit_runtime.verify.tree_mask import MASK_FORMATS

VOCAB = 160


def compare(drafter, target, stock, length=14, levels=4, seed=1):
    """Compare the drafted tree with what the stock model says after each path, read anew."""
    text = Text.of(target, drafter, tiny_prompt(length, seed=seed)[0].tolist())
    text.start(drafter, length - 3)
    draft(drafter, 3)
    text.commit(drafter, length - 3, length)
    tree = draft(drafter, levels, 3, 3)
    parent, token, prob = whole_tree(tree)
    for u in (0, *(int(v) for level in tree[:-1] for v in level.expanded)):
        whole = [*text.tokens, *path_to(u, parent, token)]
        with torch.no_grad():
            chance = torch.softmax(stock(torch.tensor([whole])).logits[0, -1], dim=-1)
        best = chance.topk(3)
        mine = [v for v in range(1, len(parent)) if parent[v] == u]
        assert [token[v] for v in mine] == best.indices.tolist()
        np.testing.assert_allclose([prob[v] for v in mine], best.values, atol=PROBABILITY)


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *((f, a) for f in ("qwen3_moe", "mixtral-sliding", "deepseek_v3") for a in MASK_FORMATS),
        ("gpt_oss", "eager"),  # the only one that it has
    ],
)
def test_trees_are_what_the_stock_model_says(family, attention, target):
    stock = tiny_model(family, seed=4)
    stock.set_attn_implementation(attention)
    drafter = CausalLmDrafter(stock)
    drafter.bind(target)
    for length in (5, 30):  # the window of the sliding ones is 8
        compare(drafter, target, stock, length)


def test_a_folder_is_loaded_as_it_is_in_the_targets_type(target, tmp_path):
    folder = tiny_lm(tmp_path, VOCAB)
    drafter = make_drafter(f"lm:{folder}")
    drafter.bind(target)
    compare(drafter, target, load_stock(folder))
    model = drafter._model
    assert model.dtype == torch.float32
    drafter.bind(target)
    assert drafter._model is model  # nothing is read twice
    drafter = CausalLmDrafter(folder, dtype=torch.bfloat16)
    drafter.bind(target)
    assert drafter._model.dtype == torch.bfloat16


def test_long_texts_are_read_in_blocks(target, monkeypatch):
    from specfit_runtime.drafters import causal_lm

    stock = tiny_model("mixtral-sliding", seed=4)
    drafter = CausalLmDrafter(stock)
    drafter.bind(target)
    monkeypatch.setattr(causal_lm, "_BLOCK", 5)
    compare(drafter, target, stock, 40)


# ---- vocabulary


def write_tokenizer(folder: Path, words: dict[str, int], **more) -> None:
    whole = {"model": {"type": "BPE", "vocab": words, "merges": []}, "added_tokens": [], **more}
    (folder / "tokenizer.json").write_text(json.dumps(whole))


@pytest.fixture
def pair(tmp_path):
    """Return a function that loads a target and the folder of a draft with so many ids."""

    def make(target_ids: int, draft_ids: int):
        tiny_checkpoint("qwen3_moe", tmp_path / "target", vocab_size=target_ids)
        tiny_lm(tmp_path / "draft", draft_ids)
        model = load_stock(tmp_path / "target")
        return model, tmp_path / "target", tmp_path / "draft"

    return make


WORDS = {f"w{i}": i for i in range(150)}


@pytest.mark.parametrize(("target_ids", "draft_ids"), [(160, 176), (176, 160), (160, 160)])
def test_padding_may_differ_if_the_tokenizers_are_equal(pair, target_ids, draft_ids):
    target, target_folder, folder = pair(target_ids, draft_ids)
    write_tokenizer(target_folder, WORDS)
    # What else is in the file may differ; the pairs of token and id may not.
    write_tokenizer(folder, WORDS, truncation={"max_length": 5})
    drafter = make_drafter(f"lm:{folder}")
    drafter.bind(target)
    assert drafter.assumption == ""
    drafter.start(tiny_prompt(9, vocab_size=150)[0].tolist())
    (level,) = draft(drafter, 1, 500, 2)
    assert level.token.max() < target_ids
    assert len(level.token) == min(target_ids, draft_ids)


def test_padding_that_nobody_knows_the_meaning_of_is_an_error(pair):
    target, target_folder, folder = pair(176, 160)
    write_tokenizer(target_folder, WORDS)
    write_tokenizer(folder, WORDS)
    drafter = make_drafter(f"lm:{folder}")
    drafter.bind(target)
    drafter.start([5, 170, 3])
    drafter.begin()
    with pytest.raises(DrafterError, match=r"the target wrote token 170, .* with 160 ids"):
        drafter.level(2, 2)


def test_other_tokenizers_are_refused_though_the_sizes_agree(pair):
    target, target_folder, folder = pair(160, 160)
    write_tokenizer(target_folder, WORDS)
    write_tokenizer(folder, {**WORDS, "w3": 4, "w4": 3})
    with pytest.raises(InvalidInputError, match=r"differ in 4 entries, such as \('w3', 3\)"):
        make_drafter(f"lm:{folder}").bind(target)
    write_tokenizer(folder, WORDS, added_tokens=[{"content": "<new>", "id": 150}])
    with pytest.raises(InvalidInputError, match="differ in 1 entries"):
        make_drafter(f"lm:{folder}").bind(target)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InvalidInputError, match="cannot read the vocabulary"):
        make_drafter(f"lm:{folder}").bind(target)


def test_tokenizers_that_list_their_tokens_are_compared_too(pair):
    target, target_folder, folder = pair(160, 176)
    for where, last in ((target_folder, "b"), (folder, "b")):
        write_tokenizer(where, [["a", -1.0], [last, -2.0]])
    make_drafter(f"lm:{folder}").bind(target)
    write_tokenizer(folder, [["a", -1.0], ["c", -2.0]])
    with pytest.raises(InvalidInputError, match="differ in 2 entries"):
        make_drafter(f"lm:{folder}").bind(target)


def test_without_tokenizers_the_sizes_must_agree(pair):
    target, _, folder = pair(160, 176)
    with pytest.raises(InvalidInputError, match="176 token ids, the target 160"):
        make_drafter(f"lm:{folder}").bind(target)


def test_sizes_that_agree_are_an_assumption_that_is_said(pair):
    target, _, folder = pair(160, 160)
    drafter = make_drafter(f"lm:{folder}")
    drafter.bind(target)
    assert "could not be compared" in drafter.assumption


# ---- what cannot draft


def test_the_target_is_not_its_own_drafter(target):
    with pytest.raises(InvalidInputError, match="cannot be its own drafter"):
        CausalLmDrafter(target).bind(target)


def test_a_model_in_training_is_refused(target):
    with pytest.raises(InvalidInputError, match=r"call eval\(\)"):
        CausalLmDrafter(tiny_model("mixtral").train()).bind(target)


def test_folders_without_a_model_are_refused(target, tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        make_drafter(f"lm:{tmp_path / 'nowhere'}")
    folder = tiny_lm(tmp_path, VOCAB)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot load the drafter in"):
        make_drafter(f"lm:{folder}").bind(target)


def test_weights_that_are_not_finite_are_an_error(target):
    stock = tiny_model("mixtral")
    stock.lm_head.weight.data[5] = float("nan")
    drafter = CausalLmDrafter(stock)
    drafter.bind(target)
    drafter.start([1, 2, 3])
    drafter.begin()
    with pytest.raises(DrafterError, match="probability of NaN"):
        drafter.level(2, 2)


def test_beyond_its_context_it_drafts_nothing(target):
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=12,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
    )
    drafter = CausalLmDrafter(GPT2LMHeadModel(config).eval())
    drafter.bind(target)
    text = tiny_prompt(20)[0].tolist()
    drafter.start(text[:10])
    assert len(draft(drafter, 9)) == 3  # from the text's last three places
    drafter.commit(text[10:13])
    assert draft(drafter, 9) == []
    drafter.commit(text[13:])
    assert draft(drafter, 9) == []
    drafter.start(text[:11])
    assert len(draft(drafter, 9)) == 2


def test_an_interrupt_while_reading_leaves_it_usable(target, monkeypatch):
    stock = tiny_model("mixtral-sliding", seed=4)
    drafter = CausalLmDrafter(stock)
    drafter.bind(target)
    text = tiny_prompt(30)[0].tolist()
    drafter.start(text[:20])
    draft(drafter, 2)
    drafter.commit(text[20:])
    last = stock.model.layers[-1]

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = last.register_forward_pre_hook(interrupt)
    drafter.begin()
    with pytest.raises(KeyboardInterrupt):
        drafter.level(2, 2)
    hook.remove()
    after = whole_tree(draft(drafter, 3))
    drafter.start(text)
    fresh = whole_tree(draft(drafter, 3))
    assert after[:2] == fresh[:2]
    np.testing.assert_allclose(after[2], fresh[2], atol=PROBABILITY)


# ---- beside an offloaded target


def test_an_offloaded_target_keeps_its_experts(tmp_path):
    from specfit_runtime.offload import load_offloaded, offload_of

    folder = tiny_checkpoint("qwen3_moe", tmp_path / "target")
    draft_folder = tiny_checkpoint("qwen3_moe", tmp_path / "draft", seed=3)
    target = load_offloaded(folder, expert_cache=0.5, store="ram")
    offload = offload_of(target)
    prompt = tiny_prompt(9)
    with torch.no_grad():
        expected = load_stock(folder)(prompt).logits
        assert_same_to_rounding(target(prompt).logits, expected)
    before, resident = offload.cache.counters(), offload.cache.resident.copy()
    drafter = make_drafter(f"lm:{draft_folder}")
    drafter.bind(target)
    drafter.start(prompt[0].tolist())
    levels = draft(drafter, 4)
    drafter.commit([3, 4])
    levels += draft(drafter, 2)
    # Nothing of the drafting went through the target's cache, and both serve their own experts.
    assert offload.cache.counters() == before
    assert (offload.cache.resident == resident).all()
    assert drafter._model.config._experts_implementation != target.config._experts_implementation
    with torch.no_grad():
        assert_same_to_rounding(target(prompt).logits, expected)
    alone = CausalLmDrafter(load_stock(draft_folder))
    alone.bind(target)
    alone.start(prompt[0].tolist())
    for one, other in zip(levels, draft(alone, 4), strict=False):
        np.testing.assert_array_equal(one.token, other.token)
    offload.close()
