"""What benchmarks/prefetch_waste.py counts, on a text of a few tokens."""

from __future__ import annotations

import pytest
from benchmark_scripts import benchmark_script

from specfit_runtime import SpecFit, demo_drafter


@pytest.fixture
def script(monkeypatch):
    return benchmark_script("prefetch_waste", monkeypatch)


def test_shares_follow_from_the_counters(script) -> None:
    totals = []
    with script.offloaded(0.25, None) as model:
        for prefetch in (False, True):
            spec = SpecFit(
                f"eagle3:{demo_drafter()}", policy="eagle-8", predictor="frequency",
                prefetch=prefetch,
            )
            totals.append(script.decoded(model, spec, 2, 6))
    plain, ahead = totals
    assert (plain.prefetched, ahead.tokens, plain.tokens) == (0, 10, 10)
    row = script.row("eagle-8", "frequency", ahead, plain)
    record = ahead.bytes // ahead.moved
    in_vain = ahead.prefetched - ahead.prefetch_hits
    assert row[4] == f"{ahead.prefetch_hits / ahead.prefetched:.1%}"
    assert row[5] == f"{in_vain * record / ahead.bytes:.1%}"
    assert 0 < ahead.prefetch_hits < ahead.prefetched
    needed = ahead.lookups - (ahead.hits - ahead.prefetch_hits)
    assert row[6] == f"{ahead.prefetch_hits / needed:.1%}"
    text = script.report([row], 0.25, 2, 6)
    assert text.splitlines()[-1].split()[:2] == ["eagle-8", "frequency"]
