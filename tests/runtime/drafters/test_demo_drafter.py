"""The shipped drafter through the runtime: the recipe's trees, and the acceptance of its card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from drafter_cases import Text, draft, whole_tree
from rounding import LOG_PROBABILITY
from safetensors.torch import load_file
from stock_models import load_stock
from tiny_drafters import tiny_eagle3
from transformers import AutoTokenizer

from specfit_runtime import demo_drafter, demo_model
from specfit_runtime.drafters import Eagle3Drafter, make_drafter

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load_stock(demo_model(), dtype=torch.float32)


@pytest.fixture(scope="module")
def drafter(model):
    found = make_drafter(f"eagle3:{demo_drafter()}")
    found.bind(model)
    return found


@pytest.fixture(scope="module")
def excerpts():
    """int64[n, 128]: the beginnings of documents that were held out."""
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    texts = json.loads((ROOT / "tests" / "demo" / "held_out.json").read_text("utf-8"))
    return torch.tensor([tokenizer(text["text"]).input_ids[:128] for text in texts])


def test_it_says_which_states_it_reads(drafter):
    assert drafter.feature_layers == (2, 5, 7)
    assert "[1, 4, 6] is read as 0-based layers" in drafter.assumption


def test_trees_are_those_of_the_recipe(model, drafter, excerpts, monkeypatch):
    if not (ROOT / "tools" / "demo_model").is_dir():
        pytest.skip("the recipe (folder 'tools') is only in the source repository")
    monkeypatch.syspath_prepend(str(ROOT))
    from tools.demo_model.drafter import STANDARD_DRAFTER, EagleHead
    from tools.demo_model.shape import STANDARD
    from tools.demo_model.tree import first_step, grow

    weights = load_file(demo_drafter() / "model.safetensors")
    head = EagleHead(STANDARD, STANDARD_DRAFTER, weights["t2d"].nonzero().squeeze(1))
    wanted = head.state_dict()
    head.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in weights.items()})
    embed = model.get_input_embeddings().weight.detach()
    for row in excerpts[:3]:
        text = Text.of(model, drafter, row.tolist())
        assert text.features is not None
        first = first_step(head, embed, row[None], text.features.flatten(1)[None])
        text.start(drafter, 40)
        at = 40
        for end in (40, 43, 100):
            text.commit(drafter, at, end)
            at = end
            levels = draft(drafter, 5, 4, 4)
            expected = grow(head, embed, first, torch.tensor([[0, end - 2]]), 4, 5)
            parent, token, prob = whole_tree(levels)
            assert parent[1:] == (expected.parent[0] + 1).tolist()
            assert token[1:] == expected.token[0].tolist()
            path = [1.0]
            for u, q in zip(parent[1:], prob[1:], strict=True):
                path.append(path[u] * q)
            # Sums over up to five levels.
            np.testing.assert_allclose(
                np.log(path[1:]), expected.log_prob[0], atol=5.0 * LOG_PROBABILITY
            )


def test_a_chain_of_four_commits_what_the_card_says(model, drafter, excerpts):
    whole = model.generate(
        excerpts[:6],
        attention_mask=torch.ones_like(excerpts[:6]),
        max_new_tokens=56,
        min_new_tokens=56,
        do_sample=False,
        temperature=None,
        top_k=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    passes = tokens = 0
    for row in whole.tolist():
        text = Text.of(model, drafter, row)
        text.start(drafter, 129)
        at = 129  # committed tokens
        while at + 5 <= len(row):
            chain = [int(level.token[0]) for level in draft(drafter, 4, 1, 1)]
            accepted = 0
            while accepted < 4 and chain[accepted] == row[at + accepted]:
                accepted += 1
            drafter.note_acceptance(1, accepted > 0)
            text.commit(drafter, at, at + accepted + 1)
            at += accepted + 1
            tokens += accepted + 1
            passes += 1
    recorded = json.loads((demo_drafter() / "evaluation.json").read_text("utf-8"))
    card = recorded["along_greedy_generation"]["chain"]["committed_per_pass"]["4"]
    assert passes >= 64  # so that the warning of a drafter that does not fit was possible
    assert tokens / passes == pytest.approx(card, rel=0.25)


def test_a_head_of_another_target_is_noticed(model, excerpts, tmp_path):
    # Sizes and names fit, so that nothing but the acceptance can tell.
    drafter = Eagle3Drafter(tiny_eagle3(tmp_path, model.config, feature_layers=(2, 5, 7)))
    drafter.bind(model)
    hits = []
    for row in excerpts[:4].tolist():
        text = Text.of(model, drafter, row)
        for at in range(60, 128, 4):
            text.start(drafter, at)
            (level,) = draft(drafter, 1, 1, 1)
            hits.append(int(level.token[0]) == row[at])
    with pytest.warns(UserWarning, match=r"not seem to fit .* fuses hidden_states\[2, 5, 7\]"):
        drafter.note_acceptance(len(hits), sum(hits))
    assert drafter.warning
