"""Each row of the ablation takes something away that is there."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from benchmark_scripts import benchmark_script

from specfit_opt.data import example_trace
from specfit_opt.policies import make_policy
from specfit_opt.replay.recorded_decode import RecordedTrees


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("ablation", monkeypatch)


def test_every_part_can_be_taken_away(script):
    for part in script.PARTS.values():
        with ExitStack() as stack:
            make_policy("specfit", **part(stack))


def test_a_decode_without_a_part_goes_another_way(script):
    trace = example_trace()
    first, end = trace.prompts[0]
    text = trace.select((trace.prompt == 0) & (trace.position < 40))
    trees = RecordedTrees(text)
    cell = next(cell for cell in script.CELLS if cell.cache == "25%")

    def played(name: str, options: Any) -> tuple[int, float]:
        return script.played(cell, text, trees, 0.0, name, options)

    tokens, seconds = played("ar", {})
    assert tokens == 40 - 12
    assert end - first >= 40
    whole = played("specfit", {})
    with ExitStack() as stack:
        without = played("specfit", script.PARTS["bias"](stack))
    assert whole != without
    assert played("specfit", {}) == whole
    assert seconds > 0.0
