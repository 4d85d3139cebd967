"""The shipped model and drafter are what their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specfit_runtime import demo_drafter, demo_model

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.filterwarnings("default")

FIGURES: dict[str, dict[str, Any]] = {
    name: json.loads((folder / "evaluation.json").read_text("utf-8"))
    for name, folder in (("model", demo_model()), ("drafter", demo_drafter()))
}
EXCERPTS = json.loads((HERE / "held_out.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def torch():
    found = pytest.importorskip("torch", reason="torch is missing: pip install 'specfit[runtime]'")
    found.set_num_threads(2)
    return found


@pytest.fixture(scope="module")
def model(torch):
    pytest.importorskip("transformers", reason="transformers is missing")
    from stock_models import load_stock

    return load_stock(demo_model(), dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(torch):
    transformers = pytest.importorskip("transformers", reason="transformers is missing")
    return transformers.AutoTokenizer.from_pretrained(demo_model())


@pytest.fixture(scope="module")
def excerpts(torch, tokenizer):
    """int64[n, 256]: pieces of documents that were held out."""
    rows = [tokenizer(excerpt["text"]).input_ids[:256] for excerpt in EXCERPTS]
    assert all(len(row) == 256 for row in rows)
    return torch.tensor(rows)


# ---- files


def test_files_are_within_their_limits():
    weights = demo_model() / "model.safetensors"
    assert weights.stat().st_size <= 16e6
    assert (demo_drafter() / "model.safetensors").stat().st_size <= 4e6
    both = [*demo_model().iterdir(), *demo_drafter().iterdir()]
    assert sum(file.stat().st_size for file in both) <= 22e6


def test_folders_hold_what_loaders_look_for():
    assert {file.name for file in demo_model().iterdir()} == {
        "README.md",
        "config.json",
        "evaluation.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {file.name for file in demo_drafter().iterdir()} == {
        "README.md",
        "config.json",
        "evaluation.json",
        "model.safetensors",
    }


def test_missing_data_is_named(monkeypatch, tmp_path):
    from specfit_runtime import demo_files

    monkeypatch.setattr(demo_files, "_DEMO", tmp_path)
    with pytest.raises(FileNotFoundError, match="package data is missing"):
        demo_model()


# ---- target


def test_the_model_is_a_stock_mixture_of_experts(torch, model):
    config = model.config
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    assert (config.num_hidden_layers, config.num_experts, config.num_experts_per_tok) == (8, 64, 4)
    assert config.norm_topk_prob
    stored = json.loads((demo_model() / "config.json").read_text("utf-8"))
    assert stored["dtype"] == "bfloat16"
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == FIGURES["model"]["parameters"]


def test_the_tokenizer_gives_back_every_text(tokenizer):
    for excerpt in EXCERPTS:
        ids = tokenizer(excerpt["text"]).input_ids
        assert tokenizer.decode(ids) == excerpt["text"]
    odd = "na\u00efve caf\u00e9 \u2013 \u4e2d\u6587 \t\x00 <|not special|>"
    assert tokenizer.decode(tokenizer(odd).input_ids) == odd
    assert tokenizer.eos_token_id == tokenizer.bos_token_id == 0


def test_greedy_tokens_are_the_recorded_ones(torch, model, tokenizer):
    recorded = FIGURES["model"]["greedy"]
    prompt = tokenizer(recorded["prompt"], return_tensors="pt").input_ids
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=32,
        min_new_tokens=32,
        do_sample=False,
        temperature=None,
        top_k=None,
        eos_token_id=None,
    )
    assert len(recorded["ids"]) == 32
    assert made[0, prompt.shape[1] :].tolist() == recorded["ids"]


def test_the_loss_on_held_out_text_is_near_the_recorded_one(torch, model, excerpts):
    recorded = FIGURES["model"]["perplexity"]
    with torch.no_grad():
        logits = model(excerpts[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), excerpts[:, 1:], reduction="none"
    ).mean(1)
    for excerpt, loss in zip(EXCERPTS, losses.tolist(), strict=True):
        # One window against the mean of many: windows of one source differ by about a fifth.
        assert loss == pytest.approx(recorded[excerpt["source"]]["nats_per_token"], rel=0.35)
    wanted = np.mean([recorded[excerpt["source"]]["nats_per_token"] for excerpt in EXCERPTS])
    assert float(losses.mean()) == pytest.approx(wanted, rel=0.12)


def test_every_layer_uses_three_quarters_of_its_experts(torch, model, excerpts):
    experts = model.config.num_experts
    assert min(FIGURES["model"]["routing"]["used"]) >= 0.75 * experts
    assert min(FIGURES["model"]["routing"]["used_at_a_tenth_of_even_share"]) >= 0.75 * experts
    chosen = {}
    hooks = [
        layer.mlp.gate.register_forward_hook(
            lambda _, __, out, number=number: chosen.__setitem__(number, out[2])
        )
        for number, layer in enumerate(model.model.layers)
    ]
    try:
        with torch.no_grad():
            model(excerpts)
    finally:
        for hook in hooks:
            hook.remove()
    for ids in chosen.values():
        assert len(ids.unique()) >= 0.75 * experts


def test_neighbouring_tokens_share_more_experts_than_strangers():
    routing = FIGURES["model"]["routing"]
    for near, far in zip(routing["neighbours"], routing["strangers"], strict=True):
        assert near > 1.2 * far
    growth = FIGURES["model"]["union_growth"]
    assert growth["consecutive"][-1] < growth["strangers"][-1] < growth["independent"][-1]


# ---- drafter


@pytest.fixture(scope="module")
def drafter(torch):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is missing")
    config = json.loads((demo_drafter() / "config.json").read_text("utf-8"))
    return config, safetensors.load_file(demo_drafter() / "model.safetensors")


def test_the_drafter_has_the_names_and_shapes_of_eagle3(torch, drafter):
    config, weights = drafter
    hidden, width = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    draft, vocab = config["draft_vocab_size"], config["vocab_size"]
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "fc.weight": (hidden, 3 * config["target_hidden_size"]),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.mlp.gate_proj.weight": (width, hidden),
        "midlayer.mlp.up_proj.weight": (width, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, width),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft, hidden),
        "d2t": (draft,),
        "t2d": (vocab,),
    }
    assert weights["d2t"].dtype == torch.int64
    assert weights["t2d"].dtype == torch.bool
    floats = [tensor for name, tensor in weights.items() if name not in {"d2t", "t2d"}]
    assert all(tensor.dtype == torch.bfloat16 for tensor in floats)
    assert sum(tensor.numel() for tensor in floats) == FIGURES["drafter"]["parameters"]


def test_the_draft_vocabulary_is_one_set_in_both_tables(torch, drafter):
    config, weights = drafter
    ids = weights["d2t"] + torch.arange(config["draft_vocab_size"])
    assert torch.equal(ids, weights["t2d"].nonzero().squeeze(1))


def test_the_configuration_names_an_eagle3_head_of_this_target(drafter, model):
    config, _ = drafter
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["target_hidden_size"] == model.config.hidden_size
    assert config["vocab_size"] == model.config.vocab_size
    layers = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    assert len(layers) == 3
    assert all(0 <= layer < model.config.num_hidden_layers - 1 for layer in layers)


def test_a_chain_of_four_commits_what_the_card_says(torch, recipe, drafter, model, excerpts):
    from tools.demo_model.acceptance import accepted, committed, greedy_continuation, grow_along
    from tools.demo_model.drafter import DrafterShape, EagleHead
    from tools.demo_model.shape import STANDARD

    config, weights = drafter
    boundaries = [i + 1 for i in config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    shape = DrafterShape(
        draft_vocab_size=config["draft_vocab_size"],
        intermediate_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        boundaries=tuple(boundaries),
    )
    head = EagleHead(STANDARD, shape, weights["t2d"].nonzero().squeeze(1))
    head.load_state_dict({name: tensor.to(head.state_dict()[name].dtype)
                          for name, tensor in weights.items()})  # fmt: skip

    def features(ids, boundaries):
        out = model(ids, output_hidden_states=True)
        kept = [out.hidden_states[boundary] for boundary in boundaries]
        return out.logits, torch.cat(kept, dim=-1)

    target = SimpleNamespace(features=features, embed=model.model.embed_tokens.weight)
    ids = greedy_continuation(model, excerpts[:, :128], 64)
    grown = grow_along(head, target, ids, range(127, 186), width=1, levels=4)
    every = torch.ones_like(grown.trees.token, dtype=torch.bool)
    found = committed(accepted(grown, every), grown)
    assert found >= 1.8
    recorded = FIGURES["drafter"]["along_greedy_generation"]["chain"]["committed_per_pass"]["4"]
    assert found == pytest.approx(recorded, rel=0.3)


def test_recorded_acceptance_is_enough_and_consistent():
    for setting in ("after_held_out_text", "along_greedy_generation"):
        found = FIGURES["drafter"][setting]
        chain = list(found["chain"]["committed_per_pass"].values())
        assert found["chain"]["committed_per_pass"]["4"] >= 1.8
        assert chain == sorted(chain)
        tree = list(found["tree_committed_per_pass"].values())
        assert tree == sorted(tree)
        assert tree[-1] > found["chain"]["committed_per_pass"]["4"]


# ---- cards


def test_cards_hold_the_figures():
    card = (demo_model() / "README.md").read_text("utf-8")
    figures = FIGURES["model"]
    for wanted in (
        f"Held-out perplexity {figures['held_out_perplexity']:.1f}",
        ", ".join(str(count) for count in figures["routing"]["used"]) + " of 64",
        "## Data",
        "## Recipe",
        "## Limits",
        "Licence: Apache-2.0",
        "public domain",
    ):
        assert wanted in card
    card = (demo_drafter() / "README.md").read_text("utf-8")
    for setting in ("after_held_out_text", "along_greedy_generation"):
        value = FIGURES["drafter"][setting]["chain"]["committed_per_pass"]["4"]
        row = next(line for line in card.splitlines() if line.startswith("| chain of 4 |"))
        assert f"{value:.2f}" in row
    assert "## Limits" in card


def test_the_optimiser_does_not_import_the_runtime():
    package = HERE.parents[1] / "specfit_opt"
    for file in package.rglob("*.py*"):
        if file.suffix in {".py", ".pyx", ".pyi"}:
            text = file.read_text("utf-8")
            assert not re.search(r"^\s*(from|import)\s+specfit_runtime", text, re.M), file
