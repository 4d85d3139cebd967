"""Tables and summaries."""

from __future__ import annotations

import dataclasses

import pytest

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.errors import InvalidInputError
from specfit_opt.replay import ReplayResult, replay, replay_table, summarise


@pytest.fixture(scope="module")
def results() -> list[ReplayResult]:
    return replay(
        example_trace(),
        policies=["ar", "chain-2", "pool-exact"],
        cache=["25%", "50%"],
        expert_bytes=EXAMPLE_EXPERT_BYTES,
        layer_repeat=EXAMPLE_LAYER_REPEAT,
    )


def test_summary(results: list[ReplayResult]) -> None:
    speed = {(r.slots, r.policy): r.tokens_per_second for r in results}
    summaries = {s.policy: s for s in summarise(results)}
    assert list(summaries) == ["ar", "chain-2", "pool-exact"]
    exact = summaries["pool-exact"]
    assert exact.cells == 2
    product = speed[16, "pool-exact"] * speed[32, "pool-exact"]
    assert exact.tokens_per_second == pytest.approx(product**0.5)
    plain = speed[16, "ar"] * speed[32, "ar"]
    assert exact.speedup == pytest.approx((product / plain) ** 0.5)
    best = {s: max(speed[s, "ar"], speed[s, "chain-2"]) for s in (16, 32)}
    ratios = [speed[s, "pool-exact"] / best[s] for s in (16, 32)]
    assert exact.worst_against_best_fixed == pytest.approx(min(ratios))
    assert exact.against_best_fixed == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert summaries["ar"].speedup == pytest.approx(1.0)
    assert summaries["ar"].against_best_fixed <= 1.0


def test_another_baseline_and_other_fixed_policies(results: list[ReplayResult]) -> None:
    summaries = {s.policy: s for s in summarise(results, baseline="chain-2", fixed=["pool-exact"])}
    assert summaries["chain-2"].speedup == pytest.approx(1.0)
    assert summaries["pool-exact"].worst_against_best_fixed == pytest.approx(1.0)


def test_a_cell_without_the_baseline(results: list[ReplayResult]) -> None:
    with pytest.raises(InvalidInputError, match="16 slots lacks 'ar' or every fixed policy"):
        summarise(results[1:])
    with pytest.raises(InvalidInputError, match="lacks 'pool-exact' or every fixed policy"):
        summarise([r for r in results if r.policy != "pool-exact"], baseline="pool-exact")


def test_results_without_a_pass_are_left_out(results: list[ReplayResult]) -> None:
    empty = dataclasses.replace(results[0], trace="other", passes=0, tokens=0, seconds=0.0)
    assert summarise([*results, empty]) == summarise(results)


def test_table(results: list[ReplayResult]) -> None:
    table = replay_table(results)
    first, second = table.split("\n\n")
    assert first.splitlines()[0] == (
        "example-trace, pcie4, lfu cache of 16 of 64 experts per layer, "
        "each recorded layer standing for 6"
    )
    assert second.splitlines()[0].startswith("example-trace, pcie4, lfu cache of 32 of 64")
    lines = first.splitlines()[1:]
    assert len(lines) == 5
    assert lines[0].split()[:4] == ["policy", "tokens/s", "passes", "tokens/pass"]
    assert len({len(line) for line in lines}) == 1
    for line, r in zip(lines[2:], results, strict=False):
        cells = line.split()
        assert cells[0] == r.policy
        assert float(cells[1]) == pytest.approx(r.tokens_per_second, abs=0.005)
        assert int(cells[2]) == r.passes
    assert replay_table([]) == ""


def test_table_without_a_link(results: list[ReplayResult]) -> None:
    r = dataclasses.replace(results[0], cache_policy="resident", layer_repeat=1)
    title = replay_table([r]).splitlines()[0]
    assert title == "example-trace, pcie4, all 64 experts per layer resident"
