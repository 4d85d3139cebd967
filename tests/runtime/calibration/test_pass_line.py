"""From passes of some sizes to a line over all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit_runtime.calibration.pass_line import closest_line, measured_sizes


def test_the_closest_line() -> None:
    sizes = (1, 2, 4)
    assert closest_line(sizes, (0.011, 0.012, 0.014)) == pytest.approx((0.010, 0.001))
    assert closest_line(sizes, (0.01, 0.02, 0.04)) == pytest.approx((0.0, 0.01))
    assert closest_line((1,), (0.01,)) == (0.01, 0.0)


def test_it_is_never_negative() -> None:
    sizes = (1, 2, 4)
    # The best constant, the best line through the origin.
    fixed, slope = closest_line(sizes, (0.03, 0.02, 0.02))
    assert slope == 0.0
    assert 0.02 < fixed < 0.03
    fixed, slope = closest_line(sizes, (0.01, 0.02, 0.08))
    assert fixed == 0.0
    assert 0.01 < slope < 0.02


@given(st.floats(1e-6, 1.0), st.floats(0.0, 1.0), st.integers(2, 300))
def test_what_is_a_line_is_found(fixed: float, slope: float, most: int) -> None:
    sizes = measured_sizes(most)
    found = closest_line(sizes, [fixed + slope * n for n in sizes])
    for n in sizes:
        assert found[0] + found[1] * n == pytest.approx(fixed + slope * n, rel=1e-6)


def test_sizes_double() -> None:
    assert measured_sizes(64) == (1, 2, 4, 8, 16, 32, 64)
    assert measured_sizes(1) == (1,)
    assert measured_sizes(5) == (1, 2, 4, 5)
