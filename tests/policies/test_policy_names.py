"""How policies are named, registered and made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_view import FakeView

from specfit_opt import METHODS
from specfit_opt.errors import InvalidInputError
from specfit_opt.policies import (
    ADAPTIVE_POLICIES,
    FIXED_POLICIES,
    POLICIES,
    Choice,
    DraftView,
    Policy,
    PolicyKind,
    make_policy,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ar", "ar"),
        ("chain", "chain-4"),
        ("chain-2", "chain-2"),
        ("chain-12", "chain-12"),
        ("eagle", "eagle-60"),
        ("eagle-8", "eagle-8"),
        ("evict", "evict"),
        ("ecospec", "ecospec"),
        ("pool", "pool-exact"),
        ("pool-exact", "pool-exact"),
        ("s2moe", "s2moe"),
        ("ratio", "ratio"),
        ("ratio-naive", "ratio"),
        ("ratio-gain-share", "ratio-gain-share"),
        ("ratio-surplus", "ratio-surplus"),
        ("ratio-surplus-none", "ratio-surplus-none"),
        ("specfit", "specfit"),
    ],
)
def test_names(name: str, expected: str) -> None:
    policy = make_policy(name)
    assert policy.name == expected
    assert make_policy(policy) is policy


def test_every_kind_says_what_it_does_and_where_it_comes_from() -> None:
    for name, kind in POLICIES.items():
        assert kind.name == name
        assert kind.summary
        assert kind.source
    assert make_policy(POLICIES["chain-K"].default_name).name == "chain-4"
    assert POLICIES["pool-METHOD"].default_name == "pool-exact"


def test_every_method_is_a_policy() -> None:
    for method in METHODS:
        assert make_policy(f"pool-{method}").name == f"pool-{method}"


def test_fixed_policies_depend_on_the_tree_alone() -> None:
    assert all(make_policy(name).fixed for name in FIXED_POLICIES)
    for name in (*ADAPTIVE_POLICIES, "pool-exact"):
        assert not make_policy(name).fixed


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("best", {}, "policy 'best' is unknown; the policies are ar, chain-K, eagle-N"),
        ("specfti", {}, r"policy 'specfti' is unknown; did you mean 'specfit'\? The policies are"),
        ("evit", {}, "did you mean 'evict'"),
        ("specfit-certified", {}, "policy 'specfit-certified' is unknown"),
        ("", {}, "policy '' is unknown"),
        ("pool-", {}, "policy 'pool-' is unknown"),
        ("ar-2", {}, "policy 'ar-2' is unknown"),
        (7, {}, "a policy is a name or a Policy, got 7"),
        ("chain-0", {}, "length of a chain must be a whole number of at least 1"),
        ("chain-x", {}, "length of a chain must be a whole number, got 'x'"),
        ("chain-K", {}, "length of a chain must be a whole number, got 'K'"),
        ("chain--1", {}, "length of a chain must be a whole number, got '-1'"),
        ("eagle-0", {}, "size of an EAGLE tree must be a whole number of at least 1"),
        ("pool-exat", {}, "method 'exat' is unknown; did you mean 'exact'"),
        ("ar", {"levels": 3}, "policy 'ar': "),
        ("chain-2", {"length": 3}, "policy 'chain-2': "),
        ("specfit", {"stop": "never"}, "policy 'specfit': .*stop"),
        ("specfit", {"levels": 0}, "levels must be a whole number of at least 1"),
        ("specfit", {"width": 1.5}, "width must be a whole number"),
        ("ratio-soon", {}, "ratio stops by naive, certified, .*; got 'soon'"),
        ("ratio-surplus-", {}, "got 'surplus-'"),
        ("ratio-surplus-soon", {}, "got 'surplus-soon'"),
        ("ratio", {"stop": "soon"}, "stop must be 'naive' or 'certified' or"),
        ("ratio", {"objective": "speed"}, "objective must be 'ratio' or 'surplus'"),
        ("evict", {"pass_time": "guess"}, "policy 'evict': .*pass_time"),
        ("ecospec", {"count": "all"}, "policy 'ecospec': .*count"),
        ("ecospec", {"budget": 0}, "budget must be a whole number of at least 1"),
    ],
)
def test_bad_names_and_options_are_refused(
    name: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_policy(name, **options)


def test_options_do_not_go_with_an_object() -> None:
    with pytest.raises(InvalidInputError, match=r"options \(levels\) go with a policy's name"):
        make_policy(make_policy("ar"), levels=2)


class Prefix(Policy):
    """One level, and the first nodes of it."""

    priced = predicts = False

    def __init__(self, size: str, *, top_k: int = 3) -> None:
        self.name = f"prefix-{size}"
        self._size, self._top_k = int(size), top_k

    def choose(self, view: DraftView) -> Choice:
        view.grow(self._top_k, 1)
        return Choice(np.arange(min(self._size, len(view.parent))))


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyKind]:
    kind = PolicyKind("prefix-M", Prefix, "the first M nodes of one level", "a test", default="2")
    with monkeypatch.context() as patch:
        patch.setattr(POLICIES, "_entries", dict(POLICIES))
        yield POLICIES.register(kind)


def test_a_policy_of_the_users_own_is_named_like_the_others(prefix: PolicyKind) -> None:
    assert POLICIES["prefix-M"] is prefix
    assert make_policy("prefix").name == "prefix-2"
    policy = make_policy("prefix-3", top_k=5)
    view = FakeView([[(0, 0.5), (0, 0.3), (0, 0.1)]])
    assert policy.choose(view).nodes.tolist() == [0, 1, 2]
    with pytest.raises(InvalidInputError, match="did you mean 'prefix-M'"):
        make_policy("prefx-M")
    with pytest.raises(InvalidInputError, match="there is a policy 'prefix-M' already"):
        POLICIES.register(prefix)


def test_what_was_registered_for_a_test_is_gone() -> None:
    assert "prefix-M" not in POLICIES
