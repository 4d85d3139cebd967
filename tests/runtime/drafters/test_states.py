"""The states that drafters give with their nodes: what the output layer made the drafts of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from drafter_cases import CASES, Text, build, draft
from rounding import PROBABILITY, assert_same_to_rounding
from tiny_models import tiny_prompt

from specfit_runtime.drafters import Drafter, Eagle3Drafter

STATEFUL = [case for case in CASES if case != "prompt-lookup"]
TEXT = tiny_prompt(24, seed=5)[0].tolist()


@pytest.fixture(scope="module", params=STATEFUL)
def drafter(request, target, tmp_path_factory):
    return build(request.param, tmp_path_factory.mktemp("drafter") / "it", target)


@pytest.fixture(scope="module", params=[case for case in STATEFUL if case.startswith("eagle3")])
def head(request, target, tmp_path_factory):
    return build(request.param, tmp_path_factory.mktemp("head") / "it", target)


def scored(drafter: Any, states: torch.Tensor) -> np.ndarray:
    """Return the probabilities that the drafter's output layer gives each target token."""
    if not isinstance(drafter, Eagle3Drafter):
        with torch.inference_mode():
            logits = drafter._model.get_output_embeddings()(states)
        return torch.softmax(logits.float(), dim=-1).numpy()
    logits = states @ drafter._head._head.T  # type: ignore[union-attr]
    prob = torch.softmax(logits.float(), dim=-1).numpy()
    if drafter._kept is None:
        return prob
    whole = np.zeros((len(prob), 160))
    whole[:, drafter._kept] = prob
    return whole


def levels_after(target: Any, drafter: Drafter, length: int, n: int = 3):
    text = Text.of(target, drafter, TEXT)
    text.start(drafter, length)
    return draft(drafter, n)


def test_a_node_s_state_is_what_its_probability_was_computed_from(target, drafter):
    levels = levels_after(target, drafter, 12)
    assert len(levels) == 3
    for level in levels:
        assert level.states.shape[0] == len(level.token)
        found = scored(drafter, level.states)[np.arange(len(level.token)), level.token]
        np.testing.assert_allclose(found, level.prob, atol=PROBABILITY)


def test_siblings_share_their_parent_s_state(target, drafter):
    for level in levels_after(target, drafter, 12):
        for parent in set(level.parent.tolist()):
            rows = level.states[torch.from_numpy(level.parent == parent)]
            assert bool((rows == rows[0]).all())


def test_prompt_lookup_has_none(target, tmp_path):
    lookup = build("prompt-lookup", tmp_path, target)
    text = [1, 2, 3, 1, 2]
    lookup.start(text)
    (level, *_) = draft(lookup, 1)
    assert level.states is None
    assert lookup.root_state() is None


def state_before(target: Any, head: Drafter, length: int) -> torch.Tensor:
    """Return what the first level after one token less was drafted from."""
    return levels_after(target, head, length - 1, 1)[0].states[:1].clone()


@pytest.mark.parametrize("length", [3, 12])
def test_root_state_after_a_prompt(target, head, length):
    expected = state_before(target, head, length)
    text = Text.of(target, head, TEXT)
    text.start(head, length)
    head.begin()
    assert head.root_state() is None  # nothing was run over yet
    head.level(2, 2)
    assert_same_to_rounding(head.root_state(), expected)


def test_root_state_nothing_lies_before_the_second_token(target, head):
    Text.of(target, head, TEXT).start(head, 2)
    draft(head, 1)
    assert head.root_state() is None


@pytest.mark.parametrize("committed", [1, 2, 3])
def test_root_state_after_a_pass(target, head, committed):
    length = 9 + committed
    expected = state_before(target, head, length)
    text = Text.of(target, head, TEXT)
    text.start(head, 9)
    draft(head, 2)
    text.commit(head, 9, length)
    head.begin()
    before = head.root_state()
    # With one new token the last state is already that of the token before it.
    if committed == 1:
        assert_same_to_rounding(before, expected)
    else:
        assert before is None
    head.level(2, 2)
    head.level(2, 2)
    assert_same_to_rounding(head.root_state(), expected)


def test_root_state_longer_texts_than_one_block(target, head, monkeypatch):
    monkeypatch.setattr("specfit_runtime.drafters.eagle3._BLOCK", 5)
    for length in (12, 13):  # the last block has one token, or two
        expected = state_before(target, head, length)
        Text.of(target, head, TEXT).start(head, length)
        draft(head, 1)
        assert_same_to_rounding(head.root_state(), expected)


def test_root_state_there_is_none_without_a_text(target, head):
    head.bind(target)
    assert head.root_state() is None
