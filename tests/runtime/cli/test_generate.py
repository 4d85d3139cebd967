"""``specfit generate`` with a model, as a user runs it."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from stock_models import load_stock
from subprocesses import environment
from tiny_models import tiny_checkpoint
from transformers import AutoTokenizer

from specfit_runtime import demo_model
from specfit_runtime.cli import main

PROMPT = "CHAPTER III\n\nEmma could not forgive her;"
NEW = 12
GREEDY = {"do_sample": False, "temperature": None, "top_k": None}
#: What every run here shares; two slots per layer make misses, evictions and rounds of the scratch
#: slab certain.
COMMON = ("--dtype", "float32", "--max-new-tokens", str(NEW), "--expert-cache", "2")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model())


@pytest.fixture(scope="module")
def stock() -> Any:
    return load_stock(demo_model(), dtype=torch.float32)


def _stock_tokens(stock: Any, tokenizer: Any, prompt: str, **options: Any) -> list[int]:
    inputs = tokenizer(prompt, return_tensors="pt")
    output = stock.generate(**inputs, **{**GREEDY, "max_new_tokens": NEW, **options})
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("policy", ["specfit", "ar", "eagle-6"])
def test_json_holds_the_stock_model_s_tokens(policy, stock, tokenizer, capsys):
    assert main(["generate", "--prompt", PROMPT, "--policy", policy, "--json", *COMMON]) == 0
    document = _json(capsys)
    expected = _stock_tokens(stock, tokenizer, PROMPT)
    assert set(document) == {"text", "token_ids", "report"}
    assert document["token_ids"] == expected
    assert document["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    report = document["report"]
    totals = report["totals"]
    assert totals["new_tokens"] == NEW
    assert report["policy"] == policy
    assert (report["drafter"] is None) == (policy == "ar")
    assert report["link_bandwidth"] is None
    assert totals["misses"] > 0
    assert totals["bytes"] == 24_576 * totals["moved"]  # an expert in bfloat16
    if policy != "specfit":  # which is free to decode plainly
        assert (totals["tokens_per_pass"] > 1.0) == (policy != "ar")


def test_text_is_streamed_and_the_summary_goes_to_standard_error(stock, tokenizer, capsys):
    assert main(["generate", "--prompt", PROMPT, "--emulate-link", "5", *COMMON]) == 0
    captured = capsys.readouterr()
    expected = _stock_tokens(stock, tokenizer, PROMPT)
    assert captured.out == tokenizer.decode(expected, skip_special_tokens=True) + "\n"
    assert "using the small model that the package ships" in captured.err
    assert "using the EAGLE-3 head that the package ships" in captured.err
    assert "policy specfit, drafter eagle3" in captured.err
    assert "emulated link    5.00 GB/s" in captured.err


def test_a_prompt_from_a_file_and_from_standard_input(
    tmp_path, monkeypatch, stock, tokenizer, capsys
):
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT, encoding="utf-8")
    common = ("--policy", "ar", "--json", *COMMON)
    expected = _stock_tokens(stock, tokenizer, PROMPT)
    assert main(["generate", "--prompt-file", str(path), *common]) == 0
    assert _json(capsys)["token_ids"] == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert main(["generate", "--prompt-file", "-", *common]) == 0
    assert _json(capsys)["token_ids"] == expected


def test_drawn_tokens_are_those_of_the_stock_model_with_the_same_seed(stock, tokenizer, capsys):
    options = ("--temperature", "0.9", "--top-k", "30", "--top-p", "0.95", "--seed", "7")
    arguments = ("--policy", "eagle-4", "--json", *options, *COMMON)
    assert main(["generate", "--prompt", PROMPT, *arguments]) == 0
    document = _json(capsys)
    transformers.set_seed(7)
    expected = _stock_tokens(
        stock, tokenizer, PROMPT, do_sample=True, temperature=0.9, top_k=30, top_p=0.95
    )
    assert document["token_ids"] == expected
    assert document["report"]["do_sample"] is True
    assert expected != _stock_tokens(stock, tokenizer, PROMPT)


def test_a_repetition_penalty_is_obeyed(stock, tokenizer, capsys):
    arguments = ("--repetition-penalty", "1.5", "--policy", "eagle-4", "--json", *COMMON)
    assert main(["generate", "--prompt", PROMPT, *arguments]) == 0
    expected = _stock_tokens(stock, tokenizer, PROMPT, repetition_penalty=1.5)
    assert _json(capsys)["token_ids"] == expected
    assert expected != _stock_tokens(stock, tokenizer, PROMPT)


def test_the_report_file_holds_what_json_says(tmp_path, capsys):
    path = tmp_path / "report.jsonl"
    arguments = ("--report", str(path), "--store", "ram", "--policy", "ar", "--json", *COMMON)
    assert main(["generate", "--prompt", PROMPT, *arguments]) == 0
    header, *cycles, totals = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    said = _json(capsys)["report"]
    assert header["store"] == "ram"
    assert header["prefill"] == said["prefill"]
    assert cycles == [{"type": "cycle", **cycle} for cycle in said["cycles"]]
    assert totals == {"type": "totals", **said["totals"]}


# ---- another model than the shipped one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that ends its text soon, with a tokenizer that has a chat template."""
    path = tiny_checkpoint(
        "qwen3_moe", tmp_path_factory.mktemp("tiny"), vocab_size=4096, max_position_embeddings=64
    )
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}|"
    tokenizer.save_pretrained(path)
    return path


def test_the_user_s_own_model_needs_a_drafter_except_for_plain_decoding(folder, capsys):
    arguments = ["generate", "--model", str(folder), "--prompt", "a", "--json", *COMMON]
    assert main(arguments) == 1
    assert "--drafter is missing: say eagle3:DIR" in capsys.readouterr().err
    assert main([*arguments, "--policy", "ar"]) == 0
    plain = _json(capsys)
    assert main([*arguments, "--drafter", "prompt-lookup", "--policy", "eagle-4"]) == 0
    looked_up = _json(capsys)
    assert looked_up["token_ids"] == plain["token_ids"]
    assert looked_up["report"]["model"] == folder.name


def test_chat_makes_the_prompt_a_user_s_message(folder, capsys):
    common = ("--model", str(folder), "--policy", "ar", "--json", *COMMON)
    assert main(["generate", "--prompt", "<user>hello|", *common]) == 0
    written_out = _json(capsys)
    assert main(["generate", "--prompt", "hello", "--chat", *common]) == 0
    chat = _json(capsys)
    assert chat["token_ids"] == written_out["token_ids"]
    assert chat["report"]["prompt_tokens"] == written_out["report"]["prompt_tokens"]


def test_the_end_of_the_text_can_be_ignored(folder, tmp_path, capsys):
    common = ("--prompt", "a", "--policy", "ar", "--json", *COMMON)
    assert main(["generate", "--model", str(folder), *common]) == 0
    tokens = _json(capsys)["token_ids"]
    assert len(tokens) == NEW
    ending = tmp_path / "ending"
    shutil.copytree(folder, ending)
    config = {"eos_token_id": tokens[3], "do_sample": True, "top_k": 40, "temperature": 0.8}
    (ending / "generation_config.json").write_text(json.dumps(config))
    assert main(["generate", "--model", str(ending), *common]) == 0
    assert _json(capsys)["token_ids"] == tokens[: tokens.index(tokens[3]) + 1]
    assert main(["generate", "--model", str(ending), "--ignore-eos", *common]) == 0
    assert _json(capsys)["token_ids"] == tokens


#: Arguments and what the message must say.
ERRORS = {
    "an unknown policy": (("--policy", "best"), "'best' is unknown"),
    "an unknown drafter": (("--drafter", "oracle"), "'oracle' is unknown"),
    "a drafter that is not there": (("--drafter", "eagle3:absent"), "absent"),
    "a model that is not there": (("--model", "./absent", "--policy", "ar"), "absent"),
    "a model without tokenizer": (("--model", "bare", "--policy", "ar"), "bare: no tokenizer"),
    "no experts": (("--expert-cache", "0"), "expert_cache"),
    "a cache that is no size": (("--expert-cache", "much"), "'much' is not understood"),
    "an unknown cache policy": (("--cache-policy", "best"), "'best' is unknown"),
    "no link": (("--emulate-link", "-1"), "--emulate-link -1: give"),
    "an unknown device": (("--device", "abacus"), "abacus"),
    "direct reads from memory": (("--store", "ram", "--direct-io"), "direct_io has no meaning"),
    "a profile that is not there": (("--profile", "absent.json"), "absent.json"),
    "no chat template": (("--chat",), "has no chat template"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line(case, tmp_path, monkeypatch, capsys, folder):
    arguments, message = ERRORS[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(folder / file, tmp_path / "bare" / file)
    before = sorted(tmp_path.rglob("*"))
    given = ("--prompt", "x", "--report", "report.jsonl", *arguments)  # the last --prompt counts
    assert main(["generate", *given]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("specfit: error: ")
    assert message in last
    assert sorted(tmp_path.rglob("*")) == before


# ---- in a process of its own


def _start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "specfit_runtime.cli", "generate", "--prompt", PROMPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**environment(), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        text=True,
    )


#: Decoding that would go on for minutes: every transfer of an expert takes 10 ms.
SLOW = ("--policy", "ar", "--emulate-link", "0.0025", "--ignore-eos", "--max-new-tokens", "900")


def test_an_interrupt_is_one_line_and_leaves_nothing_behind(tmp_path):
    process = _start(tmp_path, *SLOW, "--report", "report.jsonl")
    assert process.stdout is not None
    assert process.stdout.read(1), process.stderr.read() if process.stderr else ""
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    # Which model was taken, and that it ended; nothing else talks.
    assert [line.partition(" given")[0] for line in error.splitlines()] == [
        "specfit: no --model",
        "specfit: error: interrupted",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    with _start(tmp_path, *SLOW) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        error = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert "Traceback" not in error
    assert "error" not in error
