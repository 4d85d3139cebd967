"""What benchmarks/acceptance_reliability.py counts, on the example trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import benchmark_script

from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.data import example_trace


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("acceptance_reliability", monkeypatch)


def test_the_error_by_hand(script: Any) -> None:
    # Three in the first bin: predicted 0.05, a third taken. One in the last: 1, not taken.
    predicted = np.array([0.04, 0.05, 0.06, 1.0])
    bins = script.Bins.of(predicted, np.array([True, False, False, False]))
    assert bins.trials.tolist() == [3, *[0] * 8, 1]
    assert bins.predicted[[0, -1]] == pytest.approx([0.05, 1.0])
    assert bins.realised[[0, -1]] == pytest.approx([1 / 3, 0.0])
    assert bins.error == pytest.approx((3 * (1 / 3 - 0.05) + 1.0) / 4)


def test_children_of_accepted_nodes_are_met_once_a_pass(script: Any) -> None:
    trace = example_trace()
    found = script.replayed(trace)
    depths, drafted, taken = [], [], []
    for first, end in trace.prompts:
        at = first
        while at < end:
            cycle = trace.cycle(at)
            parent = cycle.tree.parent
            own = np.flatnonzero((parent >= 0) & cycle.accepted[np.maximum(parent, 0)])
            depths += cycle.tree.depth[own].tolist()
            taken += cycle.accepted[own].tolist()
            drafted += (cycle.tree.path_prob[own] / cycle.tree.path_prob[parent[own]]).tolist()
            at += int(cycle.accepted.sum())
    assert sorted(zip(depths, taken, strict=True)) == sorted(
        zip(found.depth.tolist(), found.taken.tolist(), strict=True)
    )
    np.testing.assert_allclose(np.sort(found.drafter), np.sort(drafted), rtol=1e-5)


def test_a_prediction_is_made_before_its_outcome_is_seen(script: Any) -> None:
    trace = example_trace()
    found = script.replayed(trace)
    first = np.flatnonzero(found.depth == 1)
    n = int((trace.cycle(0).tree.depth == 1).sum())
    fresh = AcceptanceCalibrator().path_prob([0] * n, found.drafter[:n], [1.0], 1)
    np.testing.assert_allclose(found.calibrated[first[:n]], fresh)


def test_report_and_figure(script: Any) -> None:
    pytest.importorskip("matplotlib")
    found = {"the example trace": script.replayed(example_trace())}
    text = script.report(found)
    whole = next(line.split() for line in text.splitlines() if line.startswith("all depths"))
    children = found["the example trace"]
    assert whole[2] == str(len(children.depth))
    assert whole[-1] == f"{script.Bins.of(children.calibrated, children.taken).error:.3f}"
    assert float(whole[-1]) < float(whole[-3])
    figure = script.plot(found)
    assert [panel.get_title() for panel in figure.axes] == [f"depth {d}" for d in script.DEPTHS]


def test_without_the_recording_it_says_so(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["acceptance_reliability", "--traces", str(tmp_path)])
    assert script.main() == 2
    assert "--traces" in capsys.readouterr().err
