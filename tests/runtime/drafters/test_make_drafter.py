"""Naming a drafter."""

from __future__ import annotations

import pytest

from specfit_runtime.drafters import DRAFTERS, PromptLookup, make_drafter
from specfit_runtime.errors import InvalidInputError

KINDS = "eagle3:DIR, lm:DIR, prompt-lookup"


def test_the_registry_says_how_each_kind_is_named():
    assert [kind.usage for kind in DRAFTERS.values()] == KINDS.split(", ")
    assert all(kind.summary and kind.name == name for name, kind in DRAFTERS.items())


def test_names_make_drafters_and_drafters_stay():
    drafter = make_drafter("prompt-lookup")
    assert isinstance(drafter, PromptLookup)
    assert make_drafter(drafter) is drafter


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("medusa", "'medusa' is unknown; the drafters are eagle3, lm, prompt-lookup"),
        ("eagle:x", "did you mean 'eagle3'"),
        ("eagle3", "needs a DIR: use eagle3:DIR"),
        ("lm:", "needs a DIR: use lm:DIR"),
        ("prompt-lookup:", "takes nothing after a colon"),
        ("prompt-lookup:4", "takes nothing after a colon"),
        (None, f"got None; use {KINDS}"),
    ],
)
def test_what_names_none_is_refused(name, match):
    with pytest.raises(InvalidInputError, match=match):
        make_drafter(name)
