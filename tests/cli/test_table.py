"""The table formatter."""

from __future__ import annotations

from specfit_opt.cli.table import format_table


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
