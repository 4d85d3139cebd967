"""What benchmarks/stop_rules.py compares, on the example trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import benchmark_script
from specfit_runtime.simulation import simulate

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.files import save_trace
from specfit_opt.replay import replay


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("stop_rules", monkeypatch)


def test_rules_are_held_against_the_best_fixed_policy(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "CACHES", ("50%",))
    routing_replay = benchmark_script("routing_replay", monkeypatch)
    save_trace(tmp_path / "example.npz", example_trace())
    size = {"bf16": EXAMPLE_EXPERT_BYTES}
    model = routing_replay.Model("example", ("example.npz",), size, EXAMPLE_LAYER_REPEAT)
    own = [routing_replay.Cell(model, "pcie4", "bf16", cache) for cache in script.CACHES]
    columns = {
        name: script.replayed(own, tmp_path, "oracle", f"specfit-{name}")
        for name in ("none", "depth-1")
    }
    for cell, found in columns["none"].items():
        options = {**cell.options(example_trace()), "expert_bytes": EXAMPLE_EXPERT_BYTES}
        (result,) = simulate(example_trace(), policies=["specfit-none"], **options)
        able = [p for p in routing_replay.FIXED if p != "chain-6"]
        others = replay(example_trace(), policies=able, **options)
        best = max(r.tokens_per_second for r in others)
        assert found.over_best == pytest.approx(result.tokens_per_second / best)
        plain = others[0].tokens_per_second
        assert found.over_plain == pytest.approx(result.tokens_per_second / plain)
    lines = script.table("rule", columns).splitlines()
    assert lines[0].split()[:4] == ["rule", "50%", "worst", "all"]
    none, one = lines[2].split(), lines[3].split()
    (found,) = columns["none"].values()
    assert none[1:6] == [*[f"{found.over_best:.3f}"] * 4, f"{found.over_plain:.3f}"]
    assert float(one[-3]) <= 1.0 < float(none[-3])


def test_every_rule_is_compared(script: Any) -> None:
    from specfit_opt.policies import OBJECTIVES, STOP_RULES, make_policy

    assert set(script.RULES) == set(STOP_RULES)
    assert [make_policy(name).name for name in script.RULE_NAMES] == list(script.RULE_NAMES)
    used = {make_policy("specfit", **options).objective for options in script.OBJECTIVES.values()}
    assert used == set(OBJECTIVES)


def test_a_row_of_live_counts(script: Any) -> None:
    from specfit_runtime import SpecFit, demo_drafter

    with script.offloaded(0.25, None) as model:
        spec = SpecFit(f"eagle3:{demo_drafter()}", policy="chain-2")
        totals = script.decoded(model, spec, 1, 8)
    name, tokens, levels, nodes, loads, size = script.live_row("chain-2", totals)
    assert (name, float(levels) <= 2.0, 1.0 < float(nodes) <= 3.0) == ("chain-2", True, True)
    assert tokens == f"{totals.tokens / totals.passes:.2f}"
    assert loads == f"{totals.misses / totals.passes:.1f}"
    assert size == f"{totals.bytes / totals.tokens / 1e3:.0f}"
