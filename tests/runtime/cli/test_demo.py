"""``specfit demo``: the same tokens, a table, and an error where they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from stock_models import load_stock
from transformers import AutoTokenizer

from specfit_runtime import demo_model
from specfit_runtime.cli import demo, main
from specfit_runtime.demo_files import demo_prompts

SHORT = ("--prompt", "Emma could not", "--max-new-tokens", "8", "--expert-cache", "4")


def test_json_compares_every_policy_with_the_stock_model(capsys):
    arguments = ("--policy", "specfit", "--policy", "eagle-6", "--emulate-link", "10", "--json")
    assert main(["demo", *SHORT, *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["equal"] is True
    assert [entry["policy"] for entry in document["policies"]] == ["ar", "specfit", "eagle-6"]
    for entry in document["policies"]:
        assert entry["equal"] is True
        assert entry["link_bandwidth"] == 10e9
        assert entry["totals"]["new_tokens"] == 8
        assert entry["totals"]["hits"] + entry["totals"]["misses"] == entry["totals"]["lookups"]
    plain, _, tree = (entry["totals"] for entry in document["policies"])
    assert plain["tokens_per_pass"] == 1.0
    assert tree["tokens_per_pass"] > 1.0
    inputs = AutoTokenizer.from_pretrained(demo_model())("Emma could not", return_tensors="pt")
    model = load_stock(demo_model(), dtype=torch.float32)
    expected = model.generate(
        **inputs, do_sample=False, temperature=None, top_k=None, max_new_tokens=8
    )
    assert document["token_ids"] == [expected[0, inputs["input_ids"].shape[1] :].tolist()]


def test_the_table_says_what_was_moved_and_over_what(capsys):
    assert main(["demo", *SHORT, "--policy", "chain-2", "--emulate-link", "10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Emma could not |")
    assert "emulated link of 10.0 GB/s" in out
    assert "8 layers of 64 experts, 4 per token; 4 per layer cached (lfu)" in out
    lines = out.splitlines()
    (header,) = (line for line in lines if line.startswith("policy "))
    for column in ("tokens/pass", "bytes/token", "hits", "draft", "search", "transfer", "verify"):
        assert column in header
    assert [line.split()[0] for line in lines[lines.index(header) + 2 :][:2]] == ["ar", "chain-2"]
    assert "token ids of ar and chain-2 equal those of the stock model: 8 tokens" in lines[-1]


@pytest.mark.parametrize("output", [(), ("--json",)], ids=["table", "json"])
def test_other_tokens_are_an_error(output, monkeypatch, capsys):
    stock = demo._stock

    def wrong(*args: Any) -> list[list[int]]:
        texts = stock(*args)
        texts[0][5] += 1
        return texts

    monkeypatch.setattr(demo, "_stock", wrong)
    assert main(["demo", *SHORT, "--policy", "ar", *output]) == 1
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("specfit: error: policy ar decoded other tokens than the stock model")
    assert "prompt 0, token 5" in last
    assert "equal those of the stock model" not in captured.out
    if output:
        assert json.loads(captured.out)["equal"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "'best' is unknown"),
        (("--expert-cache", "much"), "'much' is not understood"),
        (("--prompt", ""), "has no token"),
    ],
)
def test_errors_are_one_line(arguments, message, capsys):
    assert main(["demo", "--max-new-tokens", "4", *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]


def test_no_link_is_emulated_when_told_so(capsys):
    arguments = ("--policy", "ar", "--emulate-link", "0", "--store", "ram")
    assert main(["demo", *SHORT, *arguments]) == 0
    out = capsys.readouterr().out
    assert "emulated" not in out
    assert "the others: ram." in out


def test_the_shipped_prompts_are_four_and_fit():
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in demo_prompts()]
    assert len(lengths) == 4
    assert all(30 < n < 256 for n in lengths)
