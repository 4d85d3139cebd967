"""``specfit fit-router`` and ``eval-router`` on what ``specfit trace --states`` recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specfit_opt.files import Trace, load_trace, save_trace
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


def test_fitted_and_evaluated(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("fit-router", "--trace", recorded, "-o", "map", "--ridge", "0.01", "--json") == 0
    fitted = json.loads(capsys.readouterr().out)
    trace = load_trace(recorded)
    assert (fitted["folder"], fitted["nodes"], fitted["ridge"]) == ("map", trace.n_nodes, 0.01)
    names = ["last-token", "frequency", "router", "router:map", "oracle"]
    cell = ("--profile", "pcie4", "--cache", "8", "50%", *PRICES)
    arguments = ("--predictor", *names, *cell, "--plot", "figure.svg", "--json")
    assert run("eval-router", recorded, *arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["level_seconds"]) == 2
    assert min(document["level_seconds"]) > 0.0
    found = {e["predictor"]: e for e in document["evaluations"]}
    assert list(found) == names
    assert found["oracle"]["recall_by_depth"] == [1.0, 1.0, 1.0]
    assert [d["slots"] for d in found["oracle"]["decisions"]] == [8, 32]
    assert all(d["share"] == pytest.approx(1.0) for d in found["oracle"]["decisions"])
    # It is asked for what it was fitted to, so it must do far better than without.
    fit, plain = found["router:map"]["recall_by_depth"], found["router"]["recall_by_depth"]
    assert min(fit) > 0.6 > 2.0 * max(plain)
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figure.svg", "map"]


def test_without_a_model_a_table(recorded: Path, capsys: Any) -> None:
    assert run("eval-router", recorded, "--cache", "16", *PRICES) == 0
    captured = capsys.readouterr()
    assert "drafting the level" not in captured.out
    for name in ("last-token", "frequency", "oracle"):
        assert f"\n{name} " in captured.out
    assert captured.err == ""


def test_taught_predictors_know_more(recorded: Path, capsys: Any) -> None:
    recall = []
    for taught in ((), ("--taught", recorded)):
        options = ("--predictor", "frequency", "--cache", "16", *PRICES, *taught, "--json")
        assert run("eval-router", recorded, *options) == 0
        (found,) = json.loads(capsys.readouterr().out)["evaluations"]
        recall.append(found["recall_by_depth"][0])
    assert recall[1] > recall[0] + 0.1


def test_what_cannot_work_is_one_line(recorded: Path, tmp_path: Path, capsys: Any) -> None:
    trace = load_trace(recorded)
    stateless = tmp_path / "stateless.npz"
    parts = {name: getattr(trace, name) for name in ("cycle_start", "prompt", "position", "parent")}
    parts |= {name: getattr(trace, name) for name in ("token", "path_prob", "depth", "accepted")}
    parts |= {name: getattr(trace, name) for name in ("experts", "n_experts", "expert_bytes")}
    save_trace(stateless, Trace(**parts))
    twin = tmp_path / "two.npz"
    save_trace(twin, trace)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("here")
    for arguments, message in (
        (("eval-router", recorded, "--predictor", "no-such"), "predictor 'no-such' is unknown"),
        (("eval-router", recorded, "--predictor", f"router:{tmp_path}"), "cannot read a router"),
        (("eval-router", recorded, twin), "two traces are named 'two'"),
        (("eval-router", stateless, "--predictor", "router"), "record traces with --states"),
        (("eval-router", recorded, "--plot", "no/folder.svg"), "there is no folder no"),
        (("fit-router", "--trace", stateless, "-o", tmp_path / "map"), "has no drafter states"),
        (("fit-router", "--trace", recorded, "-o", tmp_path / "full"), "exists already"),
        (("fit-router", "--trace", recorded, "-o", tmp_path / "m", "--ridge", "0"), "positive"),
    ):
        assert run(*arguments) == 1, arguments
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines()[-1].startswith("specfit: error: ")
        assert message in captured.err
    assert not (tmp_path / "map").exists()


def test_a_plot_without_matplotlib(recorded: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert run("eval-router", recorded, "--plot", "figure.svg") == 1
    assert "pip install 'specfit[plot]'" in capsys.readouterr().err
    assert not Path("figure.svg").exists()
