"""benchmarks/replay_table.py as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt.files import save_trace
from specfit_opt.replay import default_policies, replay

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "replay_table.py"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/ is not here: the tests run outside the checkout")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_it_writes_every_policy_and_cell(tmp_path: Path) -> None:
    traces = [random_trace(np.random.default_rng(seed), n_experts=16) for seed in (1, 2)]
    for number, trace in enumerate(traces, start=1):
        save_trace(tmp_path / f"model-s{number}.npz", trace)
    output = tmp_path / "results" / "table.txt"
    done = _run(
        "--traces", tmp_path, "--profile", "pcie4", "--slots", 4, "--slots", 8, "--output", output
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2: model-s2, pcie4" in done.stderr
    text = output.read_text()
    assert text.strip() == done.stdout.strip()
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("slots per layer")]
    assert lines[at].split() == ["slots", "per", "layer", "4", "8"]
    assert lines[at - 1].split() == ["model"]
    options = {"policies": ["ar"], "profile": "pcie4", "cache": [4, 8], "cache_policy": "lru"}
    plain = [[r.tokens_per_second for r in replay(t, **options)] for t in traces]
    mean = [(a * b) ** 0.5 for a, b in zip(*plain, strict=True)]
    shown = [float(cell.strip("*o")) for cell in lines[at + 1].split()[1:]]
    assert shown == pytest.approx(mean, abs=0.005)
    depth = min(t.max_depth for t in traces)
    for policy in default_policies(depth, 14):
        assert sum(line.split()[:1] == [policy] for line in lines) == 2, policy


def test_no_traces(tmp_path: Path) -> None:
    done = _run("--traces", tmp_path)
    assert done.returncode == 2
    assert "no traces in" in done.stderr
    assert not done.stdout


def test_an_unknown_machine(tmp_path: Path) -> None:
    save_trace(tmp_path / "model-s1.npz", random_trace(np.random.default_rng(1)))
    output = tmp_path / "table.txt"
    done = _run("--traces", tmp_path, "--profile", "pcie9", "--output", output)
    assert done.returncode == 1
    assert done.stderr.startswith("error: profile 'pcie9' is unknown")
    assert not output.exists()
