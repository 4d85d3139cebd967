"""Registries: what is found, what is refused, and what a typo is answered with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from specfit_opt import METHODS, InvalidInputError
from specfit_opt.registry import Registry


@dataclass(frozen=True)
class Entry:
    name: str


def test_entries_are_found_in_the_order_of_their_registration() -> None:
    registry = Registry("rule", [Entry("b"), Entry("a")])
    added = registry.register(Entry("c"))
    assert list(registry) == ["b", "a", "c"]
    assert registry.find("c") is registry["c"] is added
    assert len(registry) == 3


@pytest.mark.parametrize("name", ["a", "", None, 3])
def test_a_taken_or_missing_name_is_refused(name: object) -> None:
    registry = Registry("rule", [Entry("a")])
    with pytest.raises(InvalidInputError, match="rule"):
        registry.register(Entry(name))  # type: ignore[arg-type]
    assert list(registry) == ["a"]


def test_a_typo_gets_the_nearest_name_and_all() -> None:
    with pytest.raises(InvalidInputError, match=r"'exat' is unknown; did you mean 'exact'\? .*mip"):
        METHODS.find("exat")


@pytest.mark.parametrize("name", ["magic", None, 3, ["exact"], "x" * 10_000])
def test_what_is_like_no_name_gets_the_list(name: object) -> None:
    with pytest.raises(InvalidInputError, match="is unknown; the methods are exact, mip") as caught:
        METHODS.find(name)
    assert len(str(caught.value)) < 300
