"""The prompts of the recorded branches are of text that no training saw, and are used once."""

from __future__ import annotations

import importlib
import json
from collections import Counter

import pytest
from benchmark_scripts import ROOT, benchmark_script

KINDS = {"austen", "shakespeare", "factbook", "sqlite", "mt_bench"}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    script = benchmark_script("record_branches", monkeypatch)
    return [json.loads(line) for line in script.PROMPTS.read_text("utf-8").splitlines()]


def test_no_prompt_was_trained_on(rows, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    corpus = importlib.import_module("tools.demo_model.corpus")
    for row in rows:
        kind, name = row["source"].split(": ", 1)
        assert kind == "mt_bench" or corpus.split_of(kind, name) == "heldout"
        assert kind in corpus.SOURCES or kind == "mt_bench"


def test_a_set_has_a_text_of_each_kind_and_no_text_is_used_twice(rows):
    sets = Counter(row["set"] for row in rows)
    names = [*(f"choose-{i}" for i in range(1, 5)), *(f"judge-{i}" for i in range(1, 9))]
    assert sets == dict.fromkeys(names, 5)
    for name in sets:
        kinds = {row["source"].split(": ")[0] for row in rows if row["set"] == name}
        assert kinds == KINDS
    assert len({row["prompt"] for row in rows}) == len(rows)
