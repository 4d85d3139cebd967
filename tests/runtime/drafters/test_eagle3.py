"""EAGLE-3 heads: every option against a plain form, and every mismatch refused."""

from __future__ import annotations

import json
import warnings
from itertools import combinations

import numpy as np
import pytest
import torch
from drafter_cases import Text, draft, path_to, whole_tree
from edit_checkpoint import edit_json
from naive_eagle3 import NaiveEagle3
from rounding import PROBABILITY
from safetensors.torch import load_file, save_file
from tiny_drafters import STYLES, tiny_eagle3
from tiny_models import tiny_model, tiny_prompt

from specfit_runtime.drafters import Eagle3Drafter, make_drafter
from specfit_runtime.errors import CheckpointError, DrafterError, InvalidInputError

H, HEAD_DIM, VOCAB = 48, 20, 160
ATTENTION = "midlayer.self_attn"
BIASES = {
    f"{ATTENTION}.q_proj.bias": (4 * HEAD_DIM,),
    f"{ATTENTION}.k_proj.bias": (2 * HEAD_DIM,),
    f"{ATTENTION}.v_proj.bias": (2 * HEAD_DIM,),
}
MLP_BIASES = {
    "midlayer.mlp.gate_proj.bias": (2 * H,),
    "midlayer.mlp.up_proj.bias": (2 * H,),
    "midlayer.mlp.down_proj.bias": (H,),
}
STATE_NORMS = {f"fc_norm.{i}.weight": (H,) for i in range(3)}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

#: What `tiny_eagle3` is asked for, by option.
OPTIONS = {
    "plain": {},
    "head_dim of hidden size / heads": {"head_dim": 12},
    "one head for all keys": {"n_kv_heads": 1},
    "other states": {"feature_layers": (0, 2, 1)},
    "four states": {"feature_layers": (0, 1, 2, 2)},
    "full vocabulary": {"draft_vocab_size": None},
    "full vocabulary by its size": {"draft_vocab_size": VOCAB},
    "residual normed": {"options": {"norm_before_residual": True}},
    "output normed": {"options": {"norm_output": True}},
    "joined states normed": {
        "options": {"norm_before_fc": True},
        "extra": {"input_norm.weight": (3 * H,)},
    },
    "each state normed": {"options": {"fc_norm": True}, "extra": STATE_NORMS},
    "each state normed, by the older name": {
        "options": {"norm_before_fc": True},
        "extra": STATE_NORMS,
    },
    "norms only in the file": {"extra": {**STATE_NORMS, "input_norm.weight": (3 * H,)}},
    "options of eagle_config": {
        "options": {
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [0, 1, -1],
                "norm_before_residual": True,
                "norm_output": True,
            }
        }
    },
    "attention biases": {"layer_options": {"attention_bias": True}, "extra": BIASES},
    "biases everywhere": {
        "layer_options": {"attention_bias": True, "mlp_bias": True},
        "extra": {**BIASES, **MLP_BIASES, f"{ATTENTION}.o_proj.bias": (H,), "fc.bias": (H,)},
    },
    "query and key norms": {
        "extra": {f"{ATTENTION}.{name}_norm.weight": (HEAD_DIM,) for name in "qk"}
    },
    "another hidden size": {"hidden_size": 32},
    "embeddings of its own": {"extra": {"embed_tokens.weight": (VOCAB, H)}},
    "another base": {"layer_options": {"rope_theta": 500.0}},
    "linear positions": {"layer_options": {"rope_scaling": {"type": "linear", "factor": 4.0}}},
    "llama3 positions": {"layer_options": {"rope_scaling": LLAMA3}},
    "dynamic positions": {
        "layer_options": {
            "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
            "max_position_embeddings": 8,
        }
    },
}


def compare(folder, drafter, target, length=14, levels=3):
    """Compare every drafted probability, and every child's rank, with the plain form."""
    text = Text.of(target, drafter, tiny_prompt(length, seed=1)[0].tolist())
    text.start(drafter, length - 3)
    draft(drafter, 2)
    text.commit(drafter, length - 3, length)
    tree = draft(drafter, levels, 3, 2)
    parent, token, prob = whole_tree(tree)
    naive = NaiveEagle3(
        folder, target.get_input_embeddings().weight, target.get_output_embeddings().weight
    )
    expanded = [0, *(int(v) for level in tree[:-1] for v in level.expanded)]
    with torch.no_grad():
        for u in expanded:
            chance = naive.after(text.tokens, text.features, path_to(u, parent, token))
            best = chance.topk(3)
            mine = [v for v in range(1, len(parent)) if parent[v] == u]
            assert [token[v] for v in mine] == best.indices.tolist()
            np.testing.assert_allclose([prob[v] for v in mine], best.values, atol=PROBABILITY)


@pytest.mark.parametrize(
    ("option", "style"),
    [
        (option, style)
        for option in OPTIONS
        for style in STYLES
        if style == "specforge" or option != "options of eagle_config"  # which the other lacks
    ],
)
def test_every_option_drafts_what_the_plain_form_says(option, style, target, tmp_path):
    folder = tiny_eagle3(tmp_path / "head", target.config, style=style, **OPTIONS[option])
    drafter = Eagle3Drafter(folder)
    drafter.bind(target)
    compare(folder, drafter, target)


def test_the_options_matter(target, tmp_path):
    """A reader that ignored one would draft another tree."""
    trees = {}
    for option in OPTIONS:
        folder = tiny_eagle3(tmp_path / option, target.config, **OPTIONS[option])
        drafter = Eagle3Drafter(folder)
        drafter.bind(target)
        text = Text.of(target, drafter, tiny_prompt(14, seed=1)[0].tolist())
        text.start(drafter, 14)
        trees[option] = np.concatenate([level.prob for level in draft(drafter, 3)])

    def alike(one, other):
        return len(one) == len(other) and np.abs(one - other).max() <= PROBABILITY

    # Some say the same in other words.
    assert alike(trees.pop("each state normed, by the older name"), trees["each state normed"])
    assert alike(trees.pop("full vocabulary by its size"), trees["full vocabulary"])
    for one, other in combinations(trees, 2):
        assert not alike(trees[one], trees[other]), (one, other)


def test_a_head_without_an_output_layer_takes_the_targets(target, tmp_path):
    folder = tiny_eagle3(
        tmp_path, target.config, draft_vocab_size=None, drop=("lm_head.weight",)
    )
    drafter = Eagle3Drafter(folder)
    drafter.bind(target)
    assert "the target's output layer is used" in drafter.assumption
    compare(folder, drafter, target)


def test_a_head_may_be_spread_over_files(target, tmp_path):
    one = tiny_eagle3(tmp_path / "one", target.config)
    two = tiny_eagle3(tmp_path / "two", target.config)
    tensors = load_file(two / "model.safetensors")
    (two / "model.safetensors").unlink()
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        save_file({n: t for n, t in tensors.items() if places[n] == file}, two / file)
    (two / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    trees = []
    for folder in (one, two):
        drafter = Eagle3Drafter(folder)
        drafter.bind(target)
        text = Text.of(target, drafter, tiny_prompt(9)[0].tolist())
        text.start(drafter, 9)
        trees.append(whole_tree(draft(drafter, 3)))
    assert trees[0][:2] == trees[1][:2]
    np.testing.assert_allclose(trees[0][2], trees[1][2], atol=PROBABILITY)


def test_it_computes_in_the_targets_type_or_the_one_asked_for(tmp_path):
    target = tiny_model("qwen3_moe", torch.bfloat16)
    folder = tiny_eagle3(tmp_path, target.config, dtype=torch.bfloat16)
    trees = []
    for dtype in (None, torch.float32):
        drafter = Eagle3Drafter(folder, dtype=dtype)
        drafter.bind(target)
        text = Text.of(target, drafter, tiny_prompt(20)[0].tolist())
        text.start(drafter, 20)
        trees.append(draft(drafter, 4))
    for levels in trees:
        assert all(level.prob.dtype == np.float64 for level in levels)
    # float32 scores have more than the 8 bits of bfloat16.
    coarse = torch.tensor(np.log(trees[0][0].prob)).bfloat16().double().exp().numpy()
    assert not np.array_equal(coarse, trees[0][0].prob)
    compare(folder, drafter, target.float())


def test_long_prompts_are_read_in_blocks(target, tmp_path, monkeypatch):
    from specfit_runtime.drafters import eagle3

    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, target.config))
    drafter.bind(target)
    text = Text.of(target, drafter, tiny_prompt(60)[0].tolist())
    trees = []
    for block in (256, 7, 1):
        monkeypatch.setattr(eagle3, "_BLOCK", block)
        text.start(drafter, 60)
        trees.append(draft(drafter, 3))
    for levels in trees[1:]:
        for one, other in zip(levels, trees[0], strict=True):
            np.testing.assert_array_equal(one.token, other.token)
            np.testing.assert_allclose(one.prob, other.prob, atol=PROBABILITY)


# ---- which states


def test_ids_are_read_as_their_layout_writes_them(target, tmp_path):
    for style, said in (("specforge", "0-based layers"), ("speculators", "indices into")):
        folder = tiny_eagle3(tmp_path / style, target.config, style=style, feature_layers=(0, 1, 2))
        drafter = Eagle3Drafter(folder)
        drafter.bind(target)
        assert drafter.feature_layers == (0, 1, 2)
        assert said in drafter.assumption


def test_the_target_that_the_file_names_is_said(target, tmp_path):
    named = {"speculators_config": {"verifier": {"name_or_path": "someone/Big-MoE"}}}
    folder = tiny_eagle3(tmp_path, target.config, style="speculators", options=named)
    drafter = Eagle3Drafter(folder)
    drafter.bind(target)
    assert "names someone/Big-MoE as the target" in drafter.assumption


def test_states_that_are_not_named_are_guessed_aloud(tmp_path):
    target = tiny_model("qwen3_moe", num_hidden_layers=6)
    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, target.config, feature_layers=None))
    with pytest.warns(UserWarning, match=r"does not name the states .* hidden_states\[2, 3, 3\]"):
        drafter.bind(target)
    assert drafter.feature_layers == (2, 3, 3)
    assert "assumed" in drafter.assumption
    given = Eagle3Drafter(tmp_path, feature_layers=(1, 2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given.bind(target)
    assert (given.feature_layers, given.assumption) == ((1, 2, 4), "")


def test_next_to_no_acceptance_names_the_states(target, tmp_path):
    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, target.config))
    drafter.bind(target)
    with pytest.warns(UserWarning, match=r"fuses hidden_states\[0, 1, 2\].* feature_layers"):
        drafter.note_acceptance(64, 1)


@pytest.mark.parametrize("layers", [(1, 2, 3), (2, 3, 4), (-1, 1, 2)])
def test_states_that_the_target_does_not_have_are_refused(layers, target, tmp_path):
    # The target has three layers; what Transformers gives as the last state is normed.
    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, target.config, feature_layers=layers))
    with pytest.raises(InvalidInputError, match=r"are 0 to 2.*pass feature_layers"):
        drafter.bind(target)


# ---- heads that do not fit


def refused(folder, target, match, error=CheckpointError):
    with pytest.raises(error, match=match):
        Eagle3Drafter(folder).bind(target)


def test_another_vocabulary_is_refused(target, tmp_path):
    other = tiny_model("qwen3_moe", vocab_size=200)
    folder = tiny_eagle3(tmp_path, target.config)
    refused(folder, other, "made for a vocabulary 160, the target has 200", InvalidInputError)


def test_another_hidden_size_is_refused(target, tmp_path):
    other = tiny_model("qwen3_moe", hidden_size=32)
    folder = tiny_eagle3(tmp_path, target.config)
    refused(folder, other, "states of hidden size 48, the target has 32", InvalidInputError)


def test_ignoring_head_dim_would_not_go_unseen(target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config)
    config = json.loads((folder / "config.json").read_text())
    del config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, target, r"q_proj.weight has shape \(80, 96\), by config.json it is \(48, 96\)")


def test_missing_and_unexpected_tensors_are_all_listed(target, tmp_path):
    folder = tiny_eagle3(
        tmp_path,
        target.config,
        drop=("norm.weight", "d2t"),
        extra={"midlayer.mlp.surprise.weight": (4,)},
        options={"norm_before_fc": True},
    )
    refused(
        folder,
        target,
        r"missing: d2t, input_norm.weight, norm.weight; "
        r"unexpected: midlayer.mlp.surprise.weight",
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"extra": BIASES, "layer_options": {"attention_bias": False}},
            "unexpected: .*q_proj.bias",
        ),
        ({"layer_options": {"attention_bias": True}}, "missing: .*q_proj.bias"),
        (
            {"extra": {"input_norm.weight": (144,)}, "options": {"norm_before_fc": False}},
            "unexpected: input_norm.weight",
        ),
        ({"layer_options": {"num_hidden_layers": 2}}, "2 decoder layers"),
        ({"layer_options": {"layer_types": ["sliding_attention"]}}, "sliding-window"),
        ({"layer_options": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"layer_options": {"rope_scaling": {"mrope_section": [1, 2]}}}, "multimodal rotary"),
        ({"layer_options": {"rope_scaling": {"rope_type": "spiral"}}}, "rotary settings"),
        ({"layer_options": {"hidden_size": "48"}}, "hidden_size must be a whole number from 1"),
        ({"layer_options": {"intermediate_size": 0}}, "intermediate_size must be a whole"),
        ({"layer_options": {"hidden_act": "wobble"}}, "wobble"),
        ({"layer_options": {"num_key_value_heads": 3}}, "no multiple of"),
        ({"hidden_size": 32, "drop": ("embed_tokens.weight",)}, "no embed_tokens.weight"),
        (
            {"hidden_size": 32, "draft_vocab_size": None, "drop": ("lm_head.weight",)},
            "no lm_head.weight",
        ),
        ({"drop": ("fc.weight",)}, "not an EAGLE-3 head.*lm:DIR"),
    ],
)
def test_what_does_not_fit_is_refused(changes, match, target, tmp_path):
    refused(tiny_eagle3(tmp_path, target.config, **changes), target, match)


def test_speculators_must_say_where_the_residual_leaves(target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config, style="speculators")
    config = json.loads((folder / "config.json").read_text())
    del config["norm_before_residual"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, target, "does not say norm_before_residual")
    config["speculators_model_type"] = "dflash"
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, target, "describes a 'dflash' drafter")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d2t, t2d: (d2t + 100, t2d), "outside or meets an id twice"),
        (lambda d2t, t2d: (-torch.arange(len(d2t)), t2d), "meets an id twice"),
        # Absolute ids instead of distances.
        (lambda d2t, t2d: (d2t + torch.arange(len(d2t)), t2d), "outside or meets an id twice"),
        (lambda d2t, t2d: (d2t, t2d.roll(1)), "d2t and t2d .* disagree"),
        (lambda d2t, t2d: (d2t, torch.ones_like(t2d)), "d2t and t2d .* disagree"),
        (lambda d2t, t2d: (d2t.float(), t2d), "must hold integers"),
    ],
)
def test_vocabulary_tables_that_contradict_are_refused(change, match, target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config)
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"], tensors["t2d"] = change(tensors["d2t"], tensors["t2d"])
    save_file(tensors, folder / "model.safetensors")
    refused(folder, target, match)


def test_weights_that_are_not_finite_are_refused(target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][3, 3] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    refused(folder, target, "lm_head.weight .* is not finite", DrafterError)


def test_scores_that_overflow_are_an_error(target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] *= 1e38
    save_file(tensors, folder / "model.safetensors")
    drafter = Eagle3Drafter(folder)
    drafter.bind(target)
    text = Text.of(target, drafter, tiny_prompt(9)[0].tolist())
    text.start(drafter, 9)
    drafter.begin()
    with pytest.raises(DrafterError, match="probability of NaN"):
        drafter.level(3, 3)


def test_files_that_cannot_be_read_are_named(target, tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        make_drafter(f"eagle3:{tmp_path / 'nowhere'}")
    folder = tiny_eagle3(tmp_path / "head", target.config)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])
    refused(folder, target, r"model\.safetensors is truncated")
    (folder / "model.safetensors").unlink()
    refused(folder, target, r"holds neither model\.safetensors nor")
    (folder / "pytorch_model.bin").write_bytes(b"")
    refused(folder, target, "only weights in PyTorch's pickle format")
    (folder / "model.safetensors").write_bytes(whole)
    for content, match in (("[]", "must be an object"), ("{", "no JSON"), ("[" * 999, "nested")):
        (folder / "config.json").write_text(content)
        refused(folder, target, rf"config\.json: .*{match}")
    (folder / "config.json").unlink()
    refused(folder, target, r"config\.json: cannot be read")


def test_a_head_is_known_by_its_tensors_and_not_by_a_name(target, tmp_path):
    # As EAGLE's authors publish them.
    named = tiny_eagle3(tmp_path, target.config, options={"architectures": ["LlamaForCausalLM"]})
    drafter = Eagle3Drafter(named)
    drafter.bind(target)
    compare(tmp_path, drafter, target)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", -4),
        ("rope_scaling", 2**31),
        ("rope_scaling", {"rope_type": "yarn", "factor": "x"}),
        ("rope_theta", 0.0),
        ("rope_theta", "hot"),
        ("rms_norm_eps", [1]),
        ("head_dim", 10**12),
        ("head_dim", 21),
        ("vocab_size", True),
        ("layer_types", 7),
        ("hidden_act", {"a": 1}),
        ("attention_bias", "yes"),
        ("eagle_config", 3),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": "123"}),
        ("draft_vocab_size", -1),
        ("speculators_model_type", 3),
        ("speculators_config", [1]),
        ("max_position_embeddings", 10**30),
    ],
)
def test_values_of_another_kind_are_refused_by_file_and_key(key, value, target, tmp_path):
    folder = tiny_eagle3(tmp_path, target.config)
    edit_json(folder / "config.json", lambda config: config.update({key: value}))
    with pytest.raises(CheckpointError):
        Eagle3Drafter(folder)


def test_a_relative_folder_is_found_after_a_change_of_directory(target, tmp_path, monkeypatch):
    tiny_eagle3(tmp_path / "head", target.config)
    monkeypatch.chdir(tmp_path)
    drafter = make_drafter("eagle3:head")
    monkeypatch.chdir("/")
    drafter.bind(target)
    assert drafter.feature_layers == (0, 1, 2)


def test_beyond_its_context_a_head_reads_the_end_of_the_text(target, tmp_path):
    # With one layer, what a state says depends on the last tokens that it sees and no others.
    context, length = 12, 40
    folder = tiny_eagle3(
        tmp_path, target.config, layer_options={"max_position_embeddings": context}
    )
    drafter = Eagle3Drafter(folder)
    drafter.bind(target)
    tokens = tiny_prompt(length)[0].tolist()
    text = Text.of(target, drafter, tokens)
    text.start(drafter, length)
    with pytest.warns(UserWarning, match="longer than the 12 tokens that the head"):
        once = whole_tree(draft(drafter, 3))
    assert "12 tokens" in drafter.warning
    # The same in other portions, and with another beginning.
    text.start(drafter, 15)
    draft(drafter, 2)
    text.commit(drafter, 15, 37)
    draft(drafter, 2)
    text.commit(drafter, 37, length)
    again = whole_tree(draft(drafter, 3))
    assert again[:2] == once[:2]
    np.testing.assert_allclose(again[2], once[2], atol=1e-5)
    assert text.features is not None
    states = text.features.clone()
    states[: length - context - 2] = 0.0
    drafter.start(tokens, states[: length - 1])
    other = whole_tree(draft(drafter, 1))
    np.testing.assert_allclose(other[2], once[2][: len(other[2])], atol=1e-5)
    whole = Eagle3Drafter(tiny_eagle3(tmp_path / "whole", target.config))
    whole.bind(target)
    text.start(whole, length)
    assert not np.allclose(whole_tree(draft(whole, 1))[2], other[2], atol=1e-3)


def test_bound_again_it_serves_the_new_target(target, tmp_path):
    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, target.config))
    drafter.bind(target)
    head = drafter._head
    drafter.bind(target)
    assert drafter._head is head  # nothing is read twice
    other = tiny_model("qwen3_moe", seed=7)
    drafter.bind(other)
    compare(tmp_path, drafter, other)
