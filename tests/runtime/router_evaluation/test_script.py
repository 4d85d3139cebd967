"""The script behind the page's table, on little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_scripts import benchmark_script

from specfit_runtime.router_evaluation import evaluate_router


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark_script("router_evaluation", patch)


@pytest.fixture(scope="module")
def trace(script: Any) -> Any:
    from tools.router_training.record_decoding import record_decoding

    return record_decoding(torch.tensor([[0, 310, 282], [0, 400, 17]]), 16, name="two texts")


def test_estimates_are_compared_with_the_predictor(script: Any, trace: Any) -> None:
    from specfit_runtime import demo_model, load_offloaded
    from specfit_runtime.predictors import make_predictor

    lines = script.estimate_table(trace).splitlines()
    assert lines[0].startswith("router reads, two texts")
    shown = {line.split("  ")[0]: [float(x) for x in line.split()[-9:]] for line in lines[2:]}
    assert list(shown) == ["embedding", "state", "sum", "from one to the other"]
    # The last is what the predictor does; the first and last layers read one part alone.
    router = make_predictor("router")
    router.bind(load_offloaded(demo_model(), dtype="float32"), None)
    result = evaluate_router(trace, router, cache=[16], expert_bytes=1)
    best = shown["from one to the other"]
    np.testing.assert_allclose(best[0], result.recall_by_depth[1], atol=6e-4)
    np.testing.assert_allclose(best[1:], result.recall[1], atol=6e-4)
    assert best[1] == shown["embedding"][1]
    assert best[-1] == shown["state"][-1]


def test_the_report_says_what_it_is_of(script: Any, trace: Any) -> None:
    result = evaluate_router(trace, "oracle", cache=[16], expert_bytes=9_437_184, layer_repeat=6)
    text = script.report([trace], [result], [0.001] * 5)
    assert "30 positions (two texts)" in text
    assert "9,437,184 bytes" in text
    assert "drafting the level" in text


def test_without_recordings_it_says_how_to_make_them(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["router_evaluation", "--work", str(tmp_path)])
    assert script.main() == 2
    assert "then tools.router_training" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
