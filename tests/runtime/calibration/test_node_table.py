"""From measured sizes to a table that does not fall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from specfit_runtime.calibration.node_table import grid, node_table, non_falling


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=30))
def test_non_falling_is_the_isotonic_regression(values: list[float]) -> None:
    found = non_falling(values)
    assert (np.diff(found) >= -1e-12).all()
    assert found == pytest.approx(isotonic_regression(values).x, abs=1e-9)


def test_one_slow_measurement_does_not_lift_what_follows() -> None:
    assert non_falling([1.0, 9.0, 2.0, 3.0, 4.0]).tolist() == [1.0, 4.5, 4.5, 4.5, 4.5]
    assert non_falling([1.0, 2.0, 3.0]).tolist() == [1.0, 2.0, 3.0]
    assert non_falling([3.0, 2.0, 1.0]).tolist() == [2.0, 2.0, 2.0]


def test_table_goes_through_the_sizes_and_straight_between_them() -> None:
    table = node_table((1, 2, 4, 8), (1.0, 2.0, 3.0, 7.0))
    assert table.tolist() == [1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert node_table((1,), (5.0,)).tolist() == [5.0]


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12), st.integers(0, 10**6))
def test_table_never_falls(values: list[float], seed: int) -> None:
    steps = np.random.default_rng(seed).integers(1, 20, len(values) - 1)
    sizes = [1, *(1 + np.cumsum(steps)).tolist()]
    table = node_table(sizes, values)
    assert len(table) == sizes[-1]
    assert (np.diff(table) >= 0.0).all()


def test_grid() -> None:
    assert grid(64) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    assert grid(1) == (1,)
    assert grid(5) == (1, 2, 3, 4, 5)
    assert grid(1000)[-3:] == (384, 512, 1000)
