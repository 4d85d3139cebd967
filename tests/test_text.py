"""Figures and tables as people read them."""

from __future__ import annotations

import pytest

from specfit_opt.text import byte_size, figure, format_table, seconds


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999.4, "999 B"),
        (9_437_184, "9.44 MB"),
        (25e9, "25.0 GB"),
        (1000, "1.00 kB"),
        (3e15, "3000 TB"),
    ],
)
def test_byte_size(value, text):
    assert byte_size(value) == text


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_align_to_the_right():
    text = format_table(["name", "n"], [["a", "1"], ["longer", "1000"]])
    assert text.splitlines() == [
        "name       n",
        "------------",
        "a          1",
        "longer  1000",
    ]


def test_left_columns_align_to_the_left_without_trailing_spaces():
    text = format_table(["k", "v", "w"], [["a", "xx", "y"], ["b", "z", "longest"]], left=["w"])
    assert text.splitlines()[2:] == ["a  xx  y", "b   z  longest"]


def test_a_row_that_ends_early_does_not_widen_the_columns():
    text = format_table(["m", "x", "y"], [["a", "1", "2"], ["b", "a reason that runs on"]])
    assert text.splitlines() == ["m  x  y", "-------", "a  1  2", "b  a reason that runs on"]


def test_no_rows_give_the_header_alone():
    assert format_table(["a", "b"], []) == "a  b\n----"
