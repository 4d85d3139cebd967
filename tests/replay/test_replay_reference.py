"""The fixed policies on real routing, against figures that were computed elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from naive_replay import fixed_choice, naive_replay

from specfit_opt.files import load_trace
from specfit_opt.policies import FIXED_POLICIES
from specfit_opt.profiles import HardwareProfile
from specfit_opt.replay import replay

REFERENCE = HardwareProfile(
    name="reference", bandwidth=25e9, fixed_time=0.025, draft_time=0.0012, node_time=0.00005
)
SLOTS = (16, 32, 64)
TRACES = ("gemma-4-26b-a4b-s1", "gpt-oss-120b-s1", "qwen3-30b-a3b-s1")

#: Whose figures are expected.
POLICIES = (
    "ar",
    *(f"chain-{length}" for length in (1, 2, 4, 6)),
    *(f"eagle-{size}" for size in (8, 32, 60)),
)


def _paths(shared: Path) -> tuple[Path, Path]:
    traces = shared / "traces" / "simulated"
    expected = shared / "traces" / "replay_expected.json"
    if not traces.is_dir() or not expected.is_file():
        pytest.skip("the optional simulated traces and their expected figures are absent")
    return traces, expected


def test_every_expected_figure_is_tested(shared: Path) -> None:
    _, expected = _paths(shared)
    keys = {f"{t}/{s}/{p}" for t in TRACES for s in SLOTS for p in POLICIES}
    assert set(POLICIES) <= set(FIXED_POLICIES)
    assert set(json.loads(expected.read_text())) == keys


@pytest.mark.parametrize("name", TRACES)
def test_fixed_policies_reproduce_the_expected_figures(shared: Path, name: str) -> None:
    traces, expected = _paths(shared)
    wanted = json.loads(expected.read_text())
    results = replay(
        load_trace(traces / f"{name}.npz"),
        policies=POLICIES,
        profile=REFERENCE,
        cache=SLOTS,
        cache_policy="lru",
    )
    assert len(results) == len(SLOTS) * len(POLICIES)
    for r in results:
        want = wanted[f"{name}/{r.slots}/{r.policy}"]
        assert {"tokens": r.tokens, "passes": r.passes, "misses": r.misses} == {
            key: want[key] for key in ("tokens", "passes", "misses")
        }, (r.slots, r.policy)
        assert r.seconds == pytest.approx(want["seconds"], rel=1e-9)


@pytest.mark.parametrize("policy", ["chain-2", "eagle-8"])
def test_the_naive_replay_of_these_tests_agrees_with_the_expected_figures(
    shared: Path, policy: str
) -> None:
    # So that the differential tests on generated traces compare with the right thing.
    traces, expected = _paths(shared)
    trace = load_trace(traces / "gpt-oss-120b-s1.npz")
    assert trace.expert_bytes is not None
    got = naive_replay(
        trace,
        fixed_choice(policy),
        slots=32,
        bandwidth=25e9,
        fixed_time=0.025,
        draft_time=0.0012,
        node_time=lambda n: 0.00005 * n,
        expert_bytes=trace.expert_bytes.tolist(),
    )
    want = json.loads(expected.read_text())[f"gpt-oss-120b-s1/32/{policy}"]
    assert all(got[key] == want[key] for key in ("tokens", "passes", "misses"))
    assert got["seconds"] == pytest.approx(want["seconds"], rel=1e-9)
