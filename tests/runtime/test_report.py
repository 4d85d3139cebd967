"""What a decode report adds up to, says, and writes."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import cycle, prefill, report

from specfit_runtime.errors import InvalidInputError
from specfit_runtime.report import (
    PARTS,
    CycleRecord,
    DecodeReport,
    DecodeTotals,
)

TWO = (cycle(), cycle(4, accepted=0, committed=1, hits=100, misses=0, bytes=500_000))


# ---- records


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hits": 61}, "the two must add up"),
        ({"misses": 41}, "the two must add up"),
        ({"draft_seconds": -0.1}, "draft_seconds must be a finite number"),
        ({"verify_seconds": math.nan}, "verify_seconds must be a finite number"),
        ({"bytes": -1}, "bytes must be a whole number"),
        ({"accepted": 5}, "accepted 5 of 5 verified nodes"),
        ({"committed": 4}, "committed 4 tokens after accepting 2"),
        ({"committed": 0}, "at least one"),
        ({"prefetch_hits": 61}, "61 hits by prefetch among 60 hits"),
        ({"prefetch_bytes": 5_000_000}, "prefetched 5000000 of 4500000 bytes"),
        ({"prefetched": 0}, "but no expert"),
    ],
)
def test_a_cycle_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        cycle(**changes)


def test_a_prefill_that_contradicts_itself_is_refused():
    with pytest.raises(InvalidInputError, match="the prefill has 20 hits"):
        prefill(misses=281)


def test_figures_become_plain_numbers():
    record = cycle(bytes=np.int64(4_500_000), draft_seconds=np.float32(0.5), accepted=np.int32(2))
    assert type(record.bytes) is int
    assert type(record.draft_seconds) is float
    json.dumps(record.to_dict(), allow_nan=False)


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_what_was_not_predicted_is_none(unknown):
    assert cycle(predicted_seconds=unknown).predicted_seconds is None


def test_the_parts_are_the_time_of_a_cycle():
    assert cycle().seconds == pytest.approx(0.064)


# ---- totals


def test_totals_by_hand():
    totals = report(TWO).totals
    assert (totals.passes, totals.tokens, totals.verified, totals.accepted) == (2, 4, 10, 2)
    assert (totals.lookups, totals.hits, totals.misses) == (200, 160, 40)
    assert (totals.bytes, totals.prefetch_bytes, totals.wasted_prefetch_bytes) == (
        5_000_000,
        1_000_000,
        200_000,
    )
    assert totals.seconds == pytest.approx(0.128)
    assert totals.tokens_per_second == pytest.approx(4 / 0.128)
    assert totals.tokens_per_pass == 2.0
    assert totals.acceptance == 0.25  # 2 of the 8 that are no root
    assert totals.hit_rate == 0.8
    assert totals.experts_per_token == 50.0
    assert totals.moved == 50  # 40 misses and 10 prefetched
    assert totals.moved_per_token == 12.5
    assert totals.bytes_per_token == 1_250_000.0
    assert totals.share("transfer") == pytest.approx(0.04 / 0.128)


def test_the_first_token_is_the_prefill_s():
    assert report(TWO).new_tokens == 5
    assert report().new_tokens == 1


def test_the_prefill_is_in_no_total():
    assert report(TWO).totals == report(TWO, prefill=prefill(bytes=7, seconds=99.0)).totals


def test_a_decode_without_a_cycle_has_no_rates_but_can_be_told():
    empty = report()
    assert math.isnan(empty.totals.tokens_per_second)
    assert empty.to_dict()["totals"]["tokens_per_second"] is None
    assert "the output ended with the token that the prefill gave" in empty.summary()


def test_an_unknown_part_is_refused():
    with pytest.raises(InvalidInputError, match="draft, search, transfer, verify, other"):
        report(TWO).totals.share("sleep")


_TIMES = st.floats(0.0, 10.0)
_CYCLES = st.lists(
    st.builds(
        lambda hits, misses, accepted, rejected, bonus, times, ahead: {
            "hits": hits + ahead,
            "misses": misses,
            "lookups": hits + ahead + misses,
            "accepted": accepted,
            "verified": 1 + accepted + rejected,
            "committed": max(1, accepted + bonus),
            "bytes": 10 * (misses + ahead),
            "prefetched": ahead,
            "prefetch_bytes": 10 * ahead,
            "prefetch_hits": ahead,
            **{f"{part}_seconds": t for part, t in zip(PARTS, times, strict=True)},
        },
        st.integers(0, 99),
        st.integers(0, 99),
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(0, 1),
        st.tuples(*[_TIMES] * len(PARTS)),
        st.integers(0, 9),
    ),
    max_size=8,
)


@given(_CYCLES)
def test_totals_are_consistent(changes):
    cycles, position = [], 1
    for change in changes:
        cycles.append(cycle(position, **change))
        position += cycles[-1].committed
    whole = report(cycles)
    totals = whole.totals
    assert totals.hits + totals.misses == totals.lookups
    assert totals.bytes == 10 * totals.moved
    assert whole.new_tokens == position
    assert totals.seconds == pytest.approx(sum(c.seconds for c in cycles))
    if totals.seconds:
        assert sum(totals.share(part) for part in PARTS) == pytest.approx(1.0)
    # Nothing is counted twice or lost when the cycles are split.
    parts = [DecodeTotals.of(cycles[::2]), DecodeTotals.of(cycles[1::2])]
    for name in ("passes", "tokens", "lookups", "bytes", "verified", "prefetched"):
        assert getattr(totals, name) == sum(getattr(part, name) for part in parts)


def test_positions_must_follow_from_what_was_committed():
    with pytest.raises(InvalidInputError, match="the next is at position 5"):
        report((cycle(1), cycle(5)))
    with pytest.raises(InvalidInputError, match="start anew 1 times"):
        report((cycle(1), cycle(1)))


# ---- predicted against measured


def test_predicted_against_measured_leaves_out_what_was_not_predicted():
    whole = report((cycle(1), cycle(4, predicted_seconds=None, verify_seconds=9.0), cycle(7)))
    assert whole.predicted_cycle_seconds == pytest.approx(0.048)
    assert whole.measured_cycle_seconds == pytest.approx(0.064)
    assert whole.prediction_error == pytest.approx(0.016 / 0.064)
    assert report((cycle(predicted_seconds=None),)).prediction_error is None


# ---- merging


def test_merging_sums_prompts_and_prefills():
    one = report(TWO, warnings=("slow",), assumptions=("a",))
    two = report((cycle(),), prompt_tokens=30, prefill=prefill(tokens=30), warnings=("slow", "b"))
    merged = DecodeReport.merge([one, two])
    assert (merged.prompts, merged.prompt_tokens, merged.prefill.tokens) == (2, 42, 42)
    assert merged.prefill.committed == 2
    assert merged.cycles == (*TWO, cycle())
    assert merged.new_tokens == one.new_tokens + two.new_tokens
    assert merged.warnings == ("slow", "b")
    assert merged.assumptions == ("a",)
    assert DecodeReport.merge([merged, one]).prompts == 3
    assert DecodeReport.merge([one]) == one


@pytest.mark.parametrize(
    "change",
    [{"policy": "ar"}, {"link_bandwidth": 1e9}, {"slots": (4,) * 8}, {"dtype": "bfloat16"}],
)
def test_decodes_with_other_settings_are_not_merged(change):
    with pytest.raises(InvalidInputError, match=f"report 1 has {next(iter(change))}"):
        DecodeReport.merge([report(TWO), report(TWO, **change)])


def test_nothing_cannot_be_merged():
    with pytest.raises(InvalidInputError, match="no report to merge"):
        DecodeReport.merge([])


# ---- summary


def test_the_summary_says_what_was_moved_and_by_whom():
    text = report(
        TWO,
        link_bandwidth=25e9,
        cost_source="profile laptop",
        assumptions=("the drafter reads hidden states 2, 4 and 5",),
        warnings=("almost no draft was accepted",),
    ).summary()
    for said in (
        "tiny: policy specfit, drafter eagle3, predictor frequency, greedy, cpu float32",
        "emulated link    25.0 GB/s",
        "disk, lru cache, 16 of 64 experts per layer",
        "12 tokens in 400 ms",
        "31.25 tokens/s: 4 tokens in 2 passes",
        "2.000 (expected 2.500), 5.000 nodes verified, 25.0% of the drafted ones accepted",
        "50.00 experts used, 12.50 moved, 1.25 MB",
        "80.0% of 200 lookups",
        "10 experts, 8 hits, 1.00 MB of which 200 kB wasted",
        "draft 15.6% (20.0 ms)",
        "transfer 31.2% (40.0 ms)",
        "64.0 ms measured against 48.0 ms predicted, median error 25.0%",
        "predicted from   profile laptop",
        "assumed          the drafter reads hidden states 2, 4 and 5",
        "warning          almost no draft was accepted",
    ):
        assert said in text, said


def test_the_summary_is_silent_on_what_was_not():
    text = report(
        (cycle(predicted_seconds=None, prefetch_bytes=0, prefetched=0, prefetch_hits=0),),
        drafter=None,
        predictor=None,
        policy="ar",
    ).summary()
    assert "emulated" not in text
    assert "prefetch" not in text
    assert "no drafter, no routing predictor" in text
    assert "nothing predicted" in text


# ---- files


def test_the_file_holds_all_of_a_report(tmp_path):
    path = tmp_path / "report.jsonl"
    written = DecodeReport.merge(
        [
            report(TWO, warnings=("größer",), link_bandwidth=1e9),
            report((cycle(predicted_seconds=None),), link_bandwidth=1e9),
        ]
    )
    written.write_jsonl(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["type"] for line in lines] == ["header", "cycle", "cycle", "cycle", "totals"]
    assert lines[0]["policy"] == "specfit"
    assert lines[0]["link_bandwidth"] == 1e9
    whole = written.to_dict()
    assert lines[1:-1] == [{"type": "cycle", **c} for c in whole["cycles"]]
    assert lines[-1] == {"type": "totals", **whole["totals"]}
    assert lines[-1]["bytes"] == sum(line["bytes"] for line in lines[1:-1])
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_of_a_decode_without_a_cycle_holds_no_nan(tmp_path):
    path = tmp_path / "report.jsonl"
    report().write_jsonl(path)
    assert "NaN" not in path.read_text(encoding="utf-8")


def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "report.jsonl"
    report(TWO).write_jsonl(path)
    before = path.read_bytes()

    def fail(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(CycleRecord, "to_dict", fail)
    with pytest.raises(KeyboardInterrupt):
        report((cycle(),)).write_jsonl(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_records_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        cycle().bytes = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        report().policy = "ar"
