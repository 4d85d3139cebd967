"""Cache sizes as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt.caches import slots_of, slots_per_layer
from specfit_opt.errors import InvalidInputError

LAYERS = np.array([1e6, 3e6])  # 4 MB for one slot in each layer


def slots(size: Any, *, n_experts: int = 64, record: Any = (100, 100), scratch: int = 4) -> Any:
    return slots_per_layer(size, n_experts=n_experts, record_bytes=record, scratch=scratch)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0.25, 16),
        ("25%", 16),
        (" 25 % ", 16),
        ("0.25", 16),
        (".25", 16),
        ("12.5%", 8),
        (0.3, 19),  # 19.2, rounded down
        (1.0, 64),
        ("100%", 64),
        ("1.0", 64),
        (1, 1),
        ("1", 1),
        (16, 16),
        ("16", 16),
        (np.int64(16), 16),
        (np.float64(0.5), 32),
        (65, 64),
        ("1000", 64),
        ("1TiB", 64),
        ("999999999999999999.5 TiB", 64),
    ],
)
def test_forms(size: Any, expected: int) -> None:
    assert slots(size) == (expected, expected)


def test_bytes_include_the_scratch_slab() -> None:
    assert slots("2kB") == (8, 8)  # 2,000 - 4 * 100, in two layers of 100
    assert slots("2.1 KB") == (9, 8)  # one more slot for the first layer from what is left
    assert slots("2kB", scratch=0) == (10, 10)
    assert slots("0.5MB", n_experts=5000) == (2498, 2498)


def test_bytes_with_records_of_several_sizes() -> None:
    # 600 for 2 scratch slots of 300, 800 for two slots each, and of the 350 left first the 300.
    assert slots("1750B", record=(300, 100), scratch=2) == (3, 2)
    assert slots("1650B", record=(300, 100), scratch=2) == (2, 3)


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    st.integers(1, 20),
    st.integers(0, 5),
    st.integers(1, 200_000),
)
def test_bytes_are_kept_to_and_used(
    records: list[int], n_experts: int, scratch: int, budget: int
) -> None:
    least = sum(records) + scratch * max(records)
    if budget < least:
        with pytest.raises(InvalidInputError, match=f"{least} bytes with the scratch slab"):
            slots(f"{budget}B", n_experts=n_experts, record=records, scratch=scratch)
        return
    found = slots(f"{budget}B", n_experts=n_experts, record=records, scratch=scratch)
    taken = sum(n * b for n, b in zip(found, records, strict=True)) + scratch * max(records)
    assert taken <= budget
    assert 1 <= min(found) <= max(found) <= min(n_experts, min(found) + 1)
    # One more slot fits nowhere, unless the layer has one more already or holds everything.
    for n, b in zip(found, records, strict=True):
        assert n > min(found) or n == n_experts or taken + b > budget


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "too small: the least is one expert per layer, 600 bytes with the scratch slab"),
        ("0", "too small"),
        (-1, "too small"),
        ("0%", "share of the experts must be above 0"),
        ("0.0", "above 0 and at most 1"),
        (0.0, "above 0 and at most 1"),
        (-0.5, "above 0 and at most 1"),
        (math.nan, "above 0 and at most 1"),
        (math.inf, "above 0 and at most 1"),
        (16.0, "slots per layer are written without a point, such as 16"),
        ("150%", "at most 1"),
        ("1%", "too small: the least is one expert per layer, 600 bytes"),
        ("0GiB", "too small: the least is one expert per layer, 600 bytes"),
        ("599B", "'599B' is too small: the least is one expert per layer, 600 bytes"),
        ("8 apples", "unit 'apples' is unknown; use one of B, kB, MB"),
        ("", "is not understood; give a share of the experts"),
        (".", "is not understood"),
        ("9" * 5000, "is not understood"),
        ("-8GB", "is not understood"),
        ("8GB please", "is not understood"),
        ("nan", "is not understood"),
        (True, "is not understood"),
        (np.bool_(True), "is not understood"),
        (None, "is not understood"),
        ([16], "is not understood"),
    ],
)
def test_refused(size: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match="expert_cache .*" + re.escape(message)):
        slots(size)


def test_the_least_number_of_bytes_is_enough() -> None:
    assert slots("600B") == (1, 1)


# ---- in a replay


@pytest.mark.parametrize(
    ("size", "slots"),
    [
        (0, 0),
        (16, 16),
        (np.int64(7), 7),
        ("16", 16),
        (" 64 ", 64),
        ("25%", 16),
        ("12.5%", 8),
        ("0.125", 8),
        (0.25, 16),
        ("100 %", 64),
        ("40MB", 10),
        ("43.9 MB", 10),
        ("0.04GB", 10),
        ("4000000B", 1),
        ("40MiB", 10),
        ("1TB", 64),
    ],
)
def test_forms_in_a_replay(size: int | str, slots: int) -> None:
    assert slots_of(size, 64, LAYERS) == slots


def test_bytes_count_every_layer_that_a_recorded_one_stands_for() -> None:
    assert slots_of("48MB", 64, LAYERS, layer_repeat=6) == 2


def test_a_share_is_not_lost_to_rounding() -> None:
    for n_experts in (8, 60, 64, 100, 128, 256):
        for k in range(1, n_experts + 1):
            assert slots_of(f"{100.0 * k / n_experts!r}%", n_experts, LAYERS) == k


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "-1 slots per layer do not fit 64 experts"),
        (65, "65 slots per layer do not fit 64 experts"),
        ("65", "65 slots per layer do not fit 64 experts"),
        ("101%", "at most 1"),
        ("1%", "does not hold one expert per layer"),
        ("0%", "must be above 0"),
        ("3MB", "does not hold one expert per layer"),
        ("8 GBit", "unit 'GBit' is unknown"),
        ("lots", "is not understood; give a share"),
        ("-25%", "is not understood"),
        (16.0, "written without a point"),
        (".5e", "unit 'e' is unknown"),
        (True, "is not understood"),
        (None, "is not understood"),
    ],
)
def test_refused_in_a_replay(size: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        slots_of(size, 64, LAYERS)  # type: ignore[arg-type]
