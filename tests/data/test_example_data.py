"""The recorded example that the package ships."""

from __future__ import annotations

import importlib.util
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from specfit_opt import solve_instance
from specfit_opt.data import EXAMPLE_INSTANCES, example_instances, example_trace
from specfit_opt.files import load_trace

TRACE_FIELDS = (
    "cycle_start",
    "prompt",
    "position",
    "parent",
    "token",
    "path_prob",
    "depth",
    "accepted",
    "experts",
)


def test_the_trace_is_what_its_note_says() -> None:
    trace = example_trace()
    assert (trace.n_cycles, len(trace.prompts)) == (168, 3)
    assert (trace.n_layers, trace.n_experts, trace.experts.shape[2]) == (8, 64, 4)
    assert sorted(set(trace.prompt.tolist())) == [0, 5, 6]
    assert set(np.diff(trace.cycle_start).tolist()) == {69}
    assert trace.max_depth == 5
    assert trace.expert_bytes is None
    assert trace.accepted.sum() / trace.n_cycles == pytest.approx(2.7, abs=0.01)


def test_instances_show_a_difference_between_methods() -> None:
    instances = example_instances()
    assert [instance.name for instance in instances] == list(EXAMPLE_INSTANCES)
    for instance in instances:
        assert instance.tree.n_nodes == 69
        share = int(instance.name.rsplit("-", 1)[1]) / 100
        assert 0.5 * share < instance.routing.resident.mean() <= share
        exact = solve_instance(instance)
        others = [solve_instance(instance, method=m).throughput for m in ("eagle", "evict")]
        assert max(others) < 0.95 * exact.throughput
        assert exact.n_selected > 1


def test_the_folder_is_small_and_its_note_names_every_file() -> None:
    folder = resources.files("specfit_opt.data")
    files = [entry for entry in folder.iterdir() if entry.name.endswith(".npz")]
    assert sum(len(entry.read_bytes()) for entry in files) < 200_000
    note = (folder / "README.md").read_text(encoding="utf-8")
    for entry in files:
        assert f"`{entry.name}`" in note


def _script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "make_example_data.py"
    if not path.is_file():
        pytest.skip("tools/ is not here: the tests run outside the checkout")
    spec = importlib.util.spec_from_file_location("make_example_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_instances_follow_from_the_trace() -> None:
    script = _script()
    trace = example_trace()
    assert set(script.INSTANCES) == set(EXAMPLE_INSTANCES)
    for shipped in example_instances():
        made = script.instance_at(trace, *script.INSTANCES[shipped.name])
        assert np.array_equal(made.tree.parent, shipped.tree.parent)
        assert np.array_equal(made.tree.path_prob, shipped.tree.path_prob)
        assert np.array_equal(made.routing.experts, shipped.routing.experts)
        assert np.array_equal(made.routing.resident, shipped.routing.resident)
        assert made.cost_model.fixed_time == shipped.cost_model.fixed_time
        ours, theirs = (i.cost_model.expert_table(8, 64) for i in (made, shipped))
        assert np.array_equal(ours, theirs)
        assert np.array_equal(made.cost_model.node_table(69), shipped.cost_model.node_table(69))


def test_the_script_makes_the_shipped_files(
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = shared / "traces" / "small" / "qwen3moe-8x64-draft-lm.npz"
    if not source.is_file():
        pytest.skip("the optional recording that the example was cut from is absent")
    script = _script()
    monkeypatch.setattr(sys, "argv", ["make_example_data.py", str(source), str(tmp_path)])
    script.main()
    assert "example-trace.npz" in capsys.readouterr().out
    made, shipped = load_trace(tmp_path / "example-trace.npz"), example_trace()
    for name in TRACE_FIELDS:
        assert np.array_equal(getattr(made, name), getattr(shipped, name)), name
    assert {path.stem for path in tmp_path.glob("*.npz")} == {"example-trace", *EXAMPLE_INSTANCES}
