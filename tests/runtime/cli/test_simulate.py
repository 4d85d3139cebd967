"""``specfit simulate`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from random_trace import random_trace

from specfit_opt.files import save_trace
from specfit_runtime.cli import main


def test_the_example_is_simulated_with_what_a_live_decode_knows(capsys: Any) -> None:
    assert main(["simulate", "--cache", "25%", "50%", "--policy", "ar", "specfit"]) == 0
    out = capsys.readouterr()
    assert "no trace given" in out.err
    assert "lfu cache of 16 of 64" in out.out
    assert "lfu cache of 32 of 64" in out.out
    assert "all 2 cells" in out.out


def test_json_holds_every_figure(capsys: Any) -> None:
    arguments = ["simulate", "--cache", "25%", "--policy", "specfit", "--predictor", "oracle"]
    assert main([*arguments, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["policy"] == "specfit"
    assert result["tokens"] >= 132
    assert result["seconds"] > 0.0


def test_traces_of_several_models_are_told_apart(tmp_path: Path, capsys: Any) -> None:
    paths = []
    for seed, layers in enumerate((2, 3)):
        trace = random_trace(np.random.default_rng(seed), n_layers=layers)
        save_trace(tmp_path / f"{layers}.npz", trace)
        paths.append(str(tmp_path / f"{layers}.npz"))
    prices = ["--expert-bytes", "1000000", "--cache", "50%", "--warmup", "1"]
    assert main(["simulate", *paths, *prices, "--policy", "ar", "specfit", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert sorted((r["trace"], r["policy"]) for r in results) == [
        ("2", "ar"),
        ("2", "specfit"),
        ("3", "ar"),
        ("3", "specfit"),
    ]


def test_errors_are_one_line(tmp_path: Path, capsys: Any) -> None:
    for arguments in (
        ["--predictor", "crystal-ball"],
        ["--predictor", "learned:nowhere"],
        ["--policy", "best"],
        ["--profile", "hbm"],
        ["--cache-policy", "belady"],
        [str(tmp_path / "missing.npz")],
    ):
        assert main(["simulate", *arguments]) == 1
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert "error" in error
