"""The eviction rules: their registry, and what each ranks by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt.caches import CACHE_RULES, DEFAULT_CACHE_RULE, EvictionRule
from specfit_opt.caches import lru_2 as lru_2_module
from specfit_opt.caches.lfu import DECAY
from specfit_opt.errors import InvalidInputError

N_EXPERTS = 8
#: Rules that serve one layer at a time, as the expert cache asks them.
LIVE_RULES = [name for name, rule in CACHE_RULES.items() if not rule.clairvoyant]


def make(name: str, n_layers: int = 1) -> EvictionRule:
    return CACHE_RULES[name].make(n_layers, N_EXPERTS)


def mask(*experts: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(N_EXPERTS), experts)


@pytest.mark.parametrize("name", CACHE_RULES)
def test_entries_are_complete(name: str) -> None:
    rule = CACHE_RULES.find(name)
    assert rule.name == name
    assert rule.summary
    assert rule.source


def test_the_default_knows_no_future() -> None:
    assert not CACHE_RULES[DEFAULT_CACHE_RULE].clairvoyant


@pytest.mark.parametrize("name", ["mru", "", None, 3, ["lru"]])
def test_unknown_rule(name: object) -> None:
    with pytest.raises(InvalidInputError, match=r"unknown; .*he cache policies are lru, lru-2, lf"):
        CACHE_RULES.find(name)


@pytest.mark.parametrize("name", LIVE_RULES)
@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.sets(st.integers(0, N_EXPERTS - 1)), min_size=2, max_size=2),
            st.integers(1, 4),
        ),
        max_size=12,
    )
)
def test_layer_by_layer_is_the_same_order_as_all_at_once(
    name: str, steps: list[tuple[list[set[int]], int]]
) -> None:
    """The replay and the expert cache ask one rule in two ways."""
    whole, parts = make(name, 2), make(name, 2)
    for sets, tokens in steps:
        used = np.array([mask(*own) for own in sets])
        loaded = used & (np.arange(N_EXPERTS) % 2 == 0)
        whole.use(used)
        whole.load(loaded)
        for layer in range(2):
            parts.use(used[layer], layer)
            parts.load(loaded[layer], layer)
        whole.committed(tokens)
        parts.committed(tokens)
    assert whole.rank().shape == (2, N_EXPERTS)
    assert (whole.rank() >= 0).all()
    for layer in range(2):
        rank = parts.rank(layer)
        assert rank.shape == (N_EXPERTS,)
        order = np.argsort(rank, kind="stable")
        assert order.tolist() == np.argsort(whole.rank()[layer], kind="stable").tolist()
        # What ties there ties here, too: the expert cache breaks ties by demand.
        assert np.array_equal(
            rank[order[1:]] == rank[order[:-1]],
            whole.rank()[layer][order[1:]] == whole.rank()[layer][order[:-1]],
        )


def test_lru_takes_what_is_loaded_ahead_for_used() -> None:
    rule = make("lru")
    for expert in (0, 1, 2):
        rule.use(mask(expert), 0)
    rule.load(mask(0), 0)
    assert np.argsort(rule.rank(0), kind="stable")[-3:].tolist() == [1, 0, 2]
    assert rule.rank(0)[0] == rule.rank(0)[2]


def test_lfu_counts_as_the_definition_says() -> None:
    rule = make("lfu")
    rng = np.random.default_rng(0)
    exact = np.zeros(N_EXPERTS)
    for _ in range(200):
        used = rng.random(N_EXPERTS) < np.linspace(0.1, 0.9, N_EXPERTS)
        tokens = int(rng.integers(1, 8))
        exact = (exact * DECAY + used) * DECAY ** (tokens - 1)
        rule.use(used, 0)
        rule.committed(tokens)
        assert rule.rank(0) == pytest.approx(exact, rel=1e-9)


def test_lru_2_goes_on_when_its_numbers_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    passes = rng.random((200, N_EXPERTS)) < 0.5
    plain = make("lru-2")
    for used in passes:
        plain.use(used, 0)
    expected = np.argsort(plain.rank(0), kind="stable").tolist()
    for name, value in (("_BITS", 6), ("_LATEST", 63), ("_FORGET", 32)):
        monkeypatch.setattr(lru_2_module, name, value)
    short = make("lru-2")
    for used in passes:
        short.use(used, 0)
        assert 0 <= short.rank(0).min() <= short.rank(0).max() < 2**12
    # Experts are used every other pass here, so that nothing that counts is forgotten.
    assert np.argsort(short.rank(0), kind="stable").tolist() == expected
