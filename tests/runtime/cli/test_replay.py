"""``specfit replay`` with a predictor, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import save_trace
from specfit_opt.replay import replay
from specfit_runtime.cli import main
from specfit_runtime.predictors import make_predictor


def test_the_predictor_reaches_the_replay(capsys: Any) -> None:
    arguments = ["replay", "--cache", "25%", "--policy", "specfit", "--json"]
    found = {}
    for name in (None, "oracle", "frequency"):
        assert main([*arguments, *([] if name is None else ["--predictor", name])]) == 0
        (found[name],) = json.loads(capsys.readouterr().out)
    assert found[None] == found["oracle"]
    (expected,) = replay(
        example_trace(),
        policies=["specfit"],
        predictor=lambda: make_predictor("frequency"),
        cache="25%",
        expert_bytes=EXAMPLE_EXPERT_BYTES,
        layer_repeat=EXAMPLE_LAYER_REPEAT,
    )
    assert found["frequency"] == expected.to_dict() != found["oracle"]


def test_traces_of_several_models_are_told_apart(tmp_path: Path, capsys: Any) -> None:
    paths = []
    for seed, layers in enumerate((3, 2)):
        trace = random_trace(np.random.default_rng(seed), n_layers=layers)
        save_trace(tmp_path / f"{layers}.npz", trace)
        paths.append(str(tmp_path / f"{layers}.npz"))
    prices = ["--expert-bytes", "1000000", "--cache", "50%", "--warmup", "1"]
    assert main(["replay", *paths, *prices, "--policy", "ar", "specfit", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    # In the order in which they were named.
    assert [(r["trace"], r["policy"]) for r in results] == [
        ("3", "ar"),
        ("3", "specfit"),
        ("2", "ar"),
        ("2", "specfit"),
    ]


@pytest.mark.parametrize(
    ("predictor", "message"),
    [("crystal-ball", "predictor 'crystal-ball'"), ("learned:nowhere", "nowhere")],
)
def test_errors_are_one_line(predictor: str, message: str, capsys: Any) -> None:
    assert main(["replay", "--policy", "ar", "--predictor", predictor]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("specfit: error: ")
    assert message in error
