"""Figures as people read them."""

from __future__ import annotations

import pytest

from specfit_opt.cli.units import figure, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 us"),
        (4.2e-7, "0.420 us"),
        (3.14159e-5, "31.4 us"),
        (0.0123456, "12.3 ms"),
        (0.5, "500 ms"),
        (1.0, "1.00 s"),
        (12345.0, "12345 s"),
        (float("inf"), "inf s"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(34.8, "34.80"), (-0.01, "-0.01000"), (123456.0, "123456"), (0.0, "0"), (1.0, "1.000")],
)
def test_figure(value, text):
    assert figure(value) == text
