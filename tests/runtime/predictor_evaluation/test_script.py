"""The script behind the page's table, on little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from benchmark_scripts import benchmark_script

from specfit_runtime.predictor_evaluation import evaluate_predictor


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark_script("predictor_evaluation", patch)


@pytest.fixture(scope="module")
def trace(script: Any) -> Any:
    from tools.predictor_training.record_decoding import record_decoding

    return record_decoding(torch.tensor([[0, 310, 282], [0, 400, 17]]), 16, name="two texts")


def test_decodes_are_compared_with_the_oracle_s(script: Any, trace: Any) -> None:
    lines = script.decode_table(trace).splitlines()
    assert lines[0].startswith("specfit over oracle's, over ar; two texts")
    assert [line.split()[0] for line in lines[2:]] == ["frequency", "learned", "oracle"]
    assert lines[-1].split()[1::2] == ["1.000"] * 6


def test_the_report_says_what_it_is_of(script: Any, trace: Any) -> None:
    result = evaluate_predictor(trace, "oracle", cache=[16], expert_bytes=9_437_184, layer_repeat=6)
    text = script.report(trace, [result])
    assert "30 positions" in text
    assert "9,437,184 bytes" in text
