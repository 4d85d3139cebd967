"""Prompt lookup against a form that searches the whole text at every step."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from drafter_cases import draft, path_to, whole_tree
from hypothesis import given
from hypothesis import strategies as st

from specfit_runtime.drafters import PromptLookup
from specfit_runtime.errors import InvalidInputError


class Model(SimpleNamespace):
    """Of a class of its own, which can be referred to weakly."""


def bound(max_ngram: int = 4, min_ngram: int = 1, vocab_size: int = 50) -> PromptLookup:
    drafter = PromptLookup(max_ngram, min_ngram)
    config = SimpleNamespace(vocab_size=vocab_size, hidden_size=8)
    config.get_text_config = lambda: config
    drafter.bind(Model(config=config))
    return drafter


def naive_children(text, path, max_ngram, min_ngram):
    """Return {token: probability} after a path, from all earlier occurrences of the suffix."""
    for length in range(min(max_ngram, len(text)), min_ngram - 1, -1):
        suffix = text[len(text) - length :]
        # An occurrence counts if something follows it; the suffix itself is the last one.
        places = [i + length for i in range(len(text) - length) if text[i : i + length] == suffix]
        if places:
            break
    else:
        return {}
    follow = Counter(
        text[place + len(path)]
        for place in places
        if text[place : place + len(path)] == path and place + len(path) < len(text)
    )
    total = sum(follow.values()) + len(follow)
    return {token: count / total for token, count in follow.items()}


@given(
    text=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    split=st.lists(st.integers(0, 5), max_size=8),
    max_ngram=st.integers(1, 5),
    data=st.data(),
)
def test_trees_are_what_a_search_of_the_text_finds(text, split, max_ngram, data):
    min_ngram = data.draw(st.integers(1, max_ngram))
    top_k, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    drafter = bound(max_ngram, min_ngram)
    at = 2
    drafter.start(text[:2])
    for step in split:
        draft(drafter, step % 3, top_k, width)
        drafter.commit(text[at : at + step])
        at = min(at + step, len(text))
    drafter.commit(text[at:])
    tree = draft(drafter, 4, top_k, width)
    parent, token, prob = whole_tree(tree)
    open_nodes = [0, *(int(v) for level in tree[:3] for v in level.expanded)]
    for u in open_nodes:
        expected = naive_children(text, path_to(u, parent, token), max_ngram, min_ngram)
        best = sorted(expected.items(), key=lambda item: (-item[1], item[0]))[:top_k]
        mine = [v for v in range(1, len(parent)) if parent[v] == u]
        assert [token[v] for v in mine] == [t for t, _ in best]
        np.testing.assert_allclose([prob[v] for v in mine], [p for _, p in best])


def test_the_longest_suffix_decides():
    # After (1, 2) came 7; after 2 alone mostly 9.
    text = [1, 2, 7, 0, 2, 9, 0, 2, 9, 0, 1, 2]
    drafter = bound()
    drafter.start(text)
    (level,) = draft(drafter, 1)
    assert (level.token.tolist(), level.prob.tolist()) == ([7], [0.5])
    drafter = bound(max_ngram=1)
    drafter.start(text)
    (level,) = draft(drafter, 1)
    assert level.token.tolist() == [9, 7]
    assert level.prob.tolist() == [2 / 5, 1 / 5]


def test_all_occurrences_are_merged_into_one_tree():
    text = [5, 1, 2, 0, 5, 1, 3, 0, 5, 1, 2, 9, 5]
    drafter = bound()
    drafter.start(text)
    first, second, *_ = draft(drafter, 3)
    assert (first.token.tolist(), first.prob.tolist()) == ([1], [3 / 4])
    assert (second.token.tolist(), second.prob.tolist()) == ([2, 3], [2 / 5, 1 / 5])


def test_a_text_without_repetition_gives_nothing():
    drafter = bound()
    drafter.start([1, 2, 3, 4])
    drafter.begin()
    assert drafter.level(3, 3) is None
    assert drafter.level(3, 3) is None
    drafter.commit([1])
    assert len(draft(drafter, 9)) == 4  # 2, 3, 4 and the new 1
    assert bound(min_ngram=2).max_ngram == 4


def test_one_token_over_and_over():
    drafter = bound()
    drafter.start([7] * 3000)
    levels = draft(drafter, 5)
    assert [level.token.tolist() for level in levels] == [[7]] * 5
    assert levels[0].prob[0] > 0.999


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(0, 0), (2, 3), (3, 0)])
def test_impossible_lengths_are_refused(max_ngram, min_ngram):
    with pytest.raises(InvalidInputError, match="1 <= min_ngram <= max_ngram"):
        PromptLookup(max_ngram, min_ngram)
