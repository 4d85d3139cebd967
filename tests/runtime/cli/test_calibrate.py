"""``specfit calibrate`` writes a profile that decoding takes."""

from __future__ import annotations

import json

import pytest

from specfit_runtime.calibration import load_runtime_profile
from specfit_runtime.cli import main

QUICK = ("--max-nodes", "3", "--repeats", "1", "--expert-cache", "50%")


def test_the_profile_is_written_printed_and_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *QUICK, "--emulate-link", "20", "-o", "p.json"]) == 0
    out = capsys.readouterr().out
    profile = load_runtime_profile("p.json")
    assert profile.node_sizes == (1, 2, 3)
    assert profile.drafter == "eagle3"
    assert profile.setup.link_bandwidth == 20e9
    assert out.startswith("p.json: model from emulated-disk (qwen3_moe, bfloat16 on cpu) over ")
    assert "a link of 20.0 GB/s that the machine does not have" in out
    for row in ("pass over 1 token ", "pass over 3 tokens", "draft level 1", "expert of layer 7"):
        assert f"\n{row}" in out

    arguments = ("--prompt", "Emma", "--max-new-tokens", "4", "--profile", "p.json", "--json")
    options = ("--emulate-link", "20")
    assert main(["generate", *arguments, *options]) == 0
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) == 4
    # Another link is another machine.
    assert main(["generate", *arguments]) == 1
    assert "specfit: error: " in capsys.readouterr().err


def test_json_and_a_model_of_the_user_s_without_a_drafter(tmp_path, capsys):
    from tiny_models import tiny_checkpoint

    folder = tiny_checkpoint("mixtral", tmp_path / "model")
    path = tmp_path / "p.json"
    assert main(["calibrate", "--model", str(folder), *QUICK, "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(path)
    assert document["setup"]["type"] == "mixtral"
    assert document["drafter"] is None
    assert document["draft_time"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-nodes", "0"), "max_nodes"),
        (("--repeats", "0"), "repeats"),
        (("--drafter", "oracle"), "'oracle' is unknown"),
        (("--prompt", ""), "the prompt is empty"),
    ],
)
def test_errors_leave_no_file(arguments, message, tmp_path, capsys):
    assert main(["calibrate", *arguments, "-o", str(tmp_path / "p.json")]) == 1
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
