"""Whether to draft at all, before anything was drafted."""

from __future__ import annotations

import pytest
from fake_view import FakeView

from specfit_opt.control.first_level import FirstLevel
from specfit_opt.errors import InvalidInputError


def wanted(rule: FirstLevel, acceptance: float, max_levels: int | None = None) -> bool:
    view = FakeView([[(0, 0.9)]], acceptance=(acceptance,), max_levels=max_levels)
    return rule.wanted(view, view.cost_model)


def tries(rule: FirstLevel, cycles: int) -> list[int]:
    return [i for i in range(cycles) if wanted(rule, 0.01)]


def test_it_compares_two_ratios() -> None:
    # 1.02 alone; 1.04 + 0.05 with a level: at an acceptance of 0.07 the two are as good.
    assert not wanted(FirstLevel(), 0.06)
    assert wanted(FirstLevel(), 0.08)


def test_where_nothing_can_be_committed_nothing_is_drafted() -> None:
    assert not wanted(FirstLevel(), 0.9, max_levels=0)


def test_a_no_is_tried_where_that_takes_a_hundredth_of_the_passes() -> None:
    # A level of 0.05 seconds against passes of 1.02: after five, ten, twenty and forty.
    assert tries(FirstLevel(), 75) == [4, 14, 34, 74]


def test_a_yes_ends_the_halving() -> None:
    rule = FirstLevel()
    tries(rule, 100)
    assert wanted(rule, 0.9)
    assert tries(rule, 10) == [4]


def test_what_was_tried_is_kept() -> None:
    rule, later = FirstLevel(), FirstLevel()
    assert len(tries(rule, 40)) == 3
    later.from_state(rule.to_state())
    assert tries(later, 50) == [39]


@pytest.mark.parametrize("state", [{}, {"tries": -1}, {"tries": "1"}, {"tries": 1, "x": 1}, None])
def test_another_state_is_refused(state: object) -> None:
    with pytest.raises(InvalidInputError, match="first_level"):
        FirstLevel().from_state(state)  # type: ignore[arg-type]
