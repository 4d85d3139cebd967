"""``specfit evaluate-predictor`` on what ``specfit trace --states`` recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specfit_opt.files import load_trace, save_trace
from specfit_runtime import demo_predictor
from specfit_runtime.cli import main

#: The prices of a large model, so that choices differ.
PRICES = ("--expert-bytes", "9437184", "--layer-repeat", "6")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of two texts with states."""
    path = tmp_path_factory.mktemp("recorded") / "two.npz"
    pool = ("--levels", "2", "--top-k", "3", "--width", "2", "--dtype", "float32")
    prompts = ("--prompt", "Emma could not", "--prompt", "Enter the King.\nKING.")
    options = ("--states", "--ignore-eos", "--max-new-tokens", "20", "-o", str(path))
    assert main(["trace", *prompts, *pool, *options]) == 0
    return path


def run(*arguments: Any) -> int:
    return main([str(argument) for argument in arguments])


def test_every_predictor_is_evaluated(recorded: Path, capsys: Any) -> None:
    learned = f"learned:{demo_predictor()}"
    names = ["frequency", learned, "oracle"]
    cell = ("--profile", "pcie4", "--cache", "8", "50%", *PRICES)
    assert run("evaluate-predictor", recorded, "--predictor", *names, *cell, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    found = {e["predictor"]: e for e in document["evaluations"]}
    assert list(found) == names
    assert found["oracle"]["recall_by_depth"] == [1.0, 1.0, 1.0]
    assert [d["slots"] for d in found["oracle"]["decisions"]] == [8, 32]
    assert all(d["share"] == pytest.approx(1.0) for d in found["oracle"]["decisions"])
    assert min(found[learned]["recall_by_depth"]) > 0.7 > max(found["frequency"]["recall_by_depth"])


def test_without_names_a_table(recorded: Path, capsys: Any) -> None:
    assert run("evaluate-predictor", recorded, "--cache", "16", *PRICES) == 0
    captured = capsys.readouterr()
    for name in ("frequency", "oracle"):
        assert f"\n{name} " in captured.out
    assert captured.err == ""


def test_taught_predictors_know_more(recorded: Path, capsys: Any) -> None:
    recall = []
    for taught in ((), ("--taught", recorded)):
        options = ("--predictor", "frequency", "--cache", "16", *PRICES, *taught, "--json")
        assert run("evaluate-predictor", recorded, *options) == 0
        (found,) = json.loads(capsys.readouterr().out)["evaluations"]
        recall.append(found["recall_by_depth"][0])
    assert recall[1] > recall[0] + 0.1


def test_what_cannot_work_is_one_line(recorded: Path, tmp_path: Path, capsys: Any) -> None:
    twin = tmp_path / "two.npz"
    save_trace(twin, load_trace(recorded))
    for arguments, message in (
        ((recorded, "--predictor", "no-such"), "predictor 'no-such' is unknown"),
        ((recorded, "--predictor", f"learned:{tmp_path}"), "cannot read a routing network"),
        ((recorded, twin), "two traces are named 'two'"),
        ((recorded, "--predictor", "oracle", "oracle"), "two predictors are named 'oracle'"),
    ):
        assert run("evaluate-predictor", *arguments) == 1, arguments
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[-1].startswith("specfit: error: ")
        assert message in captured.err
