"""benchmarks/cache_policies.py on small traces."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import benchmark_script
from random_trace import random_trace

from specfit_opt.caches import CACHE_RULES
from specfit_opt.replay import replay


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = benchmark_script("cache_policies", monkeypatch)
    monkeypatch.setattr(module, "FIXED", ("ar", "chain-2", "eagle-8"))
    monkeypatch.setattr(module, "SHARES", ("25%", "50%"))
    monkeypatch.setattr(module, "LIVE", ("ar",))
    return module


def test_every_figure_is_misses_over_the_optimum(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = [random_trace(np.random.default_rng(seed), n_experts=16) for seed in (1, 2)]
    np.savez(
        tmp_path / "model.npz",
        experts=traces[0].experts[:40],
        n_experts=16,
        expert_bytes=traces[0].expert_bytes,
    )
    text = script.text_of(tmp_path / "model.npz")
    assert (text.n_cycles, text.max_depth, text.name) == (40, 0, "model")
    groups = {"simulated": traces, "recorded": traces[:1], "texts": [text]}
    misses, per_token = script.run(groups)
    assert {k[2] for k in misses if k[0] == "texts"} == {"ar"}
    for (group, name, policy, share), figures in misses.items():
        for trace, figure in zip(groups[group], figures, strict=True):
            options = {"policies": policy, "cache": share, "expert_bytes": 9_000_000}
            (own,) = replay(trace, cache_policy=name, **options)
            (least,) = replay(trace, cache_policy="belady", **options)
            assert figure == own.misses / least.misses >= 1.0
    assert {k[1] for k in per_token} == set(CACHE_RULES) - {"belady"}
    live = {("live", name, "ar", share): [2, 3] for name in script.RULES for share in script.SHARES}
    shown = script.report(groups, misses, per_token, live)
    assert shown.startswith("$ python -m benchmarks.cache_policies\n")
    table = shown.split("2 traces of real")[1].splitlines()
    assert table[2].split() == ["ar", "chain-2", "eagle-8"]
    assert table[3].split() == ["25%", "50%"] * 3
    lru = [float(cell.strip("*")) for cell in table[4].split()[1:]]
    both = [
        float(np.sqrt(np.prod(misses["simulated", "lru", policy, share])))
        for policy in script.FIXED
        for share in script.SHARES
    ]
    assert lru == pytest.approx(both, abs=6e-4)
    assert "s so far" in capsys.readouterr().err


def test_no_traces(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "table.txt"
    monkeypatch.setattr(
        sys, "argv", ["cache_policies", "--traces", str(tmp_path), "--output", str(output)]
    )
    assert script.main() == 2
    assert "no traces in" in capsys.readouterr().err
    assert not output.exists()
