"""What benchmarks/stop_rules.py compares, on the example trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import benchmark_script

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import save_trace
from specfit_opt.policies import ADAPTIVE_POLICIES, FIXED_POLICIES, Ratio, make_policy
from specfit_opt.policies.ratio import OBJECTIVES, STOP_RULES
from specfit_opt.replay import replay


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("stop_rules", monkeypatch)


def test_rules_are_held_against_the_best_fixed_policy(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "CACHES", ("50%",))
    monkeypatch.setattr(script, "ROWS", ("ratio-none", "ratio-expected"))
    routing_replay = benchmark_script("routing_replay", monkeypatch)
    save_trace(tmp_path / "example.npz", example_trace())
    size = {"bf16": EXAMPLE_EXPERT_BYTES}
    model = routing_replay.Model("example", ("example.npz",), size, EXAMPLE_LAYER_REPEAT)
    columns = script.run((routing_replay.Machine(model, "pcie4", "bf16"), tmp_path, None))
    ((cell, found),) = columns["ratio-none"].items()
    options = {**cell.options(example_trace()), "expert_bytes": EXAMPLE_EXPERT_BYTES}
    (result,) = replay(example_trace(), policies=["ratio-none"], **options)
    able = [p for p in FIXED_POLICIES if p != "chain-6"]
    others = replay(example_trace(), policies=able, **options)
    best = max(r.tokens_per_second for r in others)
    assert found.over_best == pytest.approx(result.tokens_per_second / best)
    plain = others[0].tokens_per_second
    assert found.over_plain == pytest.approx(result.tokens_per_second / plain)
    lines = script.table("policy", columns).splitlines()
    assert lines[0].split()[:4] == ["policy", "50%", "worst", "all"]
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    none, fewer = rows["ratio-none"], rows["ratio-expected"]
    assert none[1:6] == [*[f"{found.over_best:.3f}"] * 4, f"{found.over_plain:.3f}"]
    assert float(fewer[-4]) < float(none[-4])
    assert float(lines[2].split()[1]) <= float(lines[3].split()[1])  # losers first


def test_every_rule_and_objective_is_compared(script: Any) -> None:
    policies = [make_policy(name) for name in script.ROWS]
    rules = {policy.stop for policy in policies if isinstance(policy, Ratio)}
    assert rules == set(STOP_RULES)
    objectives = {policy.objective for policy in policies if isinstance(policy, Ratio)}
    assert objectives == set(OBJECTIVES)
    assert set(ADAPTIVE_POLICIES) <= {policy.name for policy in policies}
