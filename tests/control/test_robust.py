"""Averages that outliers do not move, against a slow and plain computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt.control.robust import RecentAverage, RecentRatio

_VALUES = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=60)


@given(_VALUES, st.integers(1, 20))
def test_average_is_the_middle_half_of_the_window(values: list[float], window: int) -> None:
    average = RecentAverage(window)
    for value in values:
        average.add(value)
    last = np.sort(values[-window:])
    n = len(last)
    assert len(average) == n
    middle = last[n // 4 : n - n // 4] if n > 3 else last[(n - 1) // 2 : (n - 1) // 2 + 1]
    assert average.value == pytest.approx(float(middle.mean()))


def test_average_before_the_first_value() -> None:
    assert RecentAverage(4).value == 0.0
    assert RecentAverage(4, (2.0,)).value == 2.0


def test_one_stall_among_the_first_values_does_not_show() -> None:
    average = RecentAverage(32)
    for value in (9.0, 1.0):
        average.add(value)
    assert average.value == 1.0


def test_start_values_are_forgotten() -> None:
    average = RecentAverage(4, (100.0, 100.0))
    for _ in range(4):
        average.add(1.0)
    assert average.value == 1.0


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1e3), st.floats(1e-3, 1e3)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 20),
)
def test_ratio_is_the_middle_half_of_the_weight(
    pairs: list[tuple[float, float]], window: int
) -> None:
    ratio = RecentRatio(window, start=1.0, start_pairs=1)
    for numerator, denominator in pairs:
        ratio.add(numerator, denominator)
    # Every pair as many small ones of its ratio, sorted; the mean of their middle half.
    all_pairs = [(1.0, pairs[0][1])] + [(a / b, b) for a, b in pairs]
    last = sorted(all_pairs[-window:])
    weight = np.array([w for _, w in last])
    edges = np.concatenate([[0.0], np.cumsum(weight)])
    low, high = 0.25 * edges[-1], 0.75 * edges[-1]
    inside = np.clip(edges[1:], low, high) - np.clip(edges[:-1], low, high)
    expected = float(inside @ [r for r, _ in last]) / (high - low)
    assert ratio.value == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_ratio_before_the_first_pair() -> None:
    assert RecentRatio(4, start=2.5).value == 2.5


@pytest.mark.parametrize("share", [0.02, 0.06])
def test_outliers_hardly_move_either(share: float) -> None:
    rng = np.random.default_rng(5)
    average, ratio = RecentAverage(32), RecentRatio(32, start=1.0)
    worst = 0.0
    for i in range(1000):
        stall = 50.0 if rng.random() < share else 1.0
        value = 2.0 * float(np.exp(0.05 * rng.normal())) * stall
        average.add(value)
        denominator = float(rng.uniform(0.5, 2.0))
        ratio.add(value * denominator, denominator)
        if i > 40:
            worst = max(worst, abs(average.value - 2.0), abs(ratio.value - 2.0))
    assert worst < 0.2
