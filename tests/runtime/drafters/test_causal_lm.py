"""A language model as drafter: its trees, its vocabulary, and that it leaves the target alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from drafter_cases import Text, draft, path_to, whole_tree
from edit_checkpoint import edit_tensors
from rounding import PROBABILITY, assert_same_to_rounding
from stock_models import load_stock
from tiny_drafters import tiny_lm
from tiny_models import tiny_checkpoint, tiny_model, tiny_prompt
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

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


def test_behind_an_id_that_it_does_not_have_it_begins_anew(pair):
    target, target_folder, folder = pair(176, 160)
    write_tokenizer(target_folder, WORDS)
    write_tokenizer(folder, WORDS)
    drafter = make_drafter(f"lm:{folder}")
    drafter.bind(target)
    drafter.start([5, 3, 170])
    with pytest.warns(UserWarning, match=r"the target wrote token 170, .* with 160 ids"):
        assert draft(drafter, 2) == []
    drafter.commit([7, 9])
    after = whole_tree(draft(drafter, 2))
    assert "170" in drafter.warning
    drafter.start([7, 9])
    alone = whole_tree(draft(drafter, 2))
    assert after[:2] == alone[:2]
    np.testing.assert_allclose(after[2], alone[2], atol=2e-6)


def test_a_draft_that_embeds_fewer_ids_than_the_tokenizer_has(pair):
    target, target_folder, folder = pair(160, 100)
    write_tokenizer(target_folder, WORDS)
    write_tokenizer(folder, WORDS)
    with pytest.raises(InvalidInputError, match=r"embeds 100 token ids, .* has 150"):
        make_drafter(f"lm:{folder}").bind(target)


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
    with pytest.raises(InvalidInputError, match=r"tokenizer\.json: no JSON"):
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
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-64])
    with pytest.raises(CheckpointError, match="is truncated"):
        make_drafter(f"lm:{folder}")
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(CheckpointError, match="pickle format"):
        make_drafter(f"lm:{folder}")
    weights.write_bytes(whole)
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        make_drafter(f"lm:{folder}").bind(target)


def test_a_relative_folder_is_found_after_a_change_of_directory(target, tmp_path, monkeypatch):
    tiny_lm(tmp_path / "draft", VOCAB)
    monkeypatch.chdir(tmp_path)
    drafter = make_drafter("lm:draft")
    monkeypatch.chdir("/")
    drafter.bind(target)
    assert drafter._device.type == "cpu"


@pytest.mark.parametrize("thing", [7, None, torch.nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(InvalidInputError, match="a draft model is a folder or a model"):
        CausalLmDrafter(thing)


def test_weights_that_are_not_finite_are_an_error(target):
    stock = tiny_model("mixtral")
    stock.lm_head.weight.data[5] = float("nan")
    with pytest.raises(DrafterError, match="its weights are not finite"):
        CausalLmDrafter(stock).bind(target)


#: Models by name, and what the refusal says; None: they draft.
_SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
ARCHITECTURES = {
    "gpt2": ({"n_layer": 2, "n_head": 4}, None),
    "opt": ({"num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32}, None),
    "gpt_neox": ({"num_attention_heads": 4, "intermediate_size": 48}, None),
    "bloom": ({"n_head": 4}, "cannot draft trees"),
    "falcon": ({"num_attention_heads": 4, "alibi": True}, "cannot draft trees"),
    "mpt": ({"n_heads": 4, "d_model": 32, "n_layers": 2}, "other scores"),
    "mamba": ({"state_size": 4}, "only full_attention"),
    "rwkv": ({"attention_hidden_size": 32}, "cannot|takes neither"),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")
def test_a_model_drafts_right_or_is_refused_when_it_is_bound(name, target):
    options, refusal = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        name, **{**_SIZES, **options}, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    stock = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, weight in stock.named_parameters():
            if weight.ndim == 2 and "embed" not in key:
                weight.mul_(8.0)  # as drawn, little depends on anything
    drafter = CausalLmDrafter(stock)
    if refusal is None:
        drafter.bind(target)
        compare(drafter, target, stock)
    else:
        with pytest.raises(InvalidInputError, match=refusal):
            drafter.bind(target)


def test_a_model_that_ignores_where_its_tokens_stand_is_refused(target):
    stock = tiny_model("mixtral", seed=4)
    rotary = stock.model.rotary_emb
    forward = rotary.forward

    def by_row(x, position_ids):
        # By the place in the cache, as models do that count what they hold.
        first = int(position_ids.min())
        return forward(x, torch.arange(first, first + position_ids.shape[1])[None])

    rotary.forward = by_row
    with pytest.raises(InvalidInputError, match="a MixtralForCausalLM, gives a draft tree other"):
        CausalLmDrafter(stock).bind(target)


@pytest.mark.parametrize("scaled", [False, True])
def test_beyond_its_context_it_reads_the_end_of_the_text(scaled, target):
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 12}
    stock = (
        tiny_model("mixtral", max_position_embeddings=12, rope_parameters={**rope, "factor": 4.0})
        if scaled
        else GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCAB, n_positions=12, n_embd=16, n_layer=1, n_head=2)
        ).eval()
    )
    drafter = CausalLmDrafter(stock)
    drafter.bind(target)
    text = tiny_prompt(20)[0].tolist()
    drafter.start(text[:10])
    first = draft(drafter, 5)
    assert len(first) == (5 if scaled else 3)  # from the text's last three places
    drafter.commit(text[10:13])
    if scaled:
        assert len(draft(drafter, 5)) == 5
        assert drafter.warning == ""
        return
    with pytest.warns(UserWarning, match="longer than the 12 tokens .* the last 6 to 12"):
        after = whole_tree(draft(drafter, 4))
    assert "12 tokens" in drafter.warning
    drafter.start(text[7:13])
    alone = whole_tree(draft(drafter, 4))
    assert after[:2] == alone[:2]
    np.testing.assert_allclose(after[2], alone[2], atol=2e-6)


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
    from specfit_runtime import load_offloaded, offload_of

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
