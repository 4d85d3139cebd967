"""Declared kinds of values: what they take, and where they say that something is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specfit_opt.checks import Flag, Kind, Maybe, OneOf, Real, Text, Whole, checked, shown
from specfit_opt.errors import InvalidInputError
from specfit_opt.schema import ListOf, MapOf, Record

POINT = Record({"x": Real(), "label": Text()}, {"size": Whole(1, 9)})


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (Whole(), np.int16(3), 3),
        (Whole(-1), -1, -1),
        (Real(), np.float32(0.5), 0.5),
        (Real(), 2, 2.0),
        (Text(empty=True), "", ""),
        (Flag(), np.True_, True),
        (OneOf(("a", 1)), 1, 1),
        (Maybe(Whole()), None, None),
        (ListOf(Whole()), np.arange(3), [0, 1, 2]),
        (ListOf(ListOf(Flag())), ((True,), ()), [[True], []]),
        (MapOf(Text()), {"a": "b"}, {"a": "b"}),
        (POINT, {"x": 1, "label": "a"}, {"x": 1.0, "label": "a"}),
        (Record({}, others=True), {"unknown": [1]}, {"unknown": [1]}),
    ],
)
def test_takes(kind: Kind, value: Any, taken: Any) -> None:
    given = checked(value, kind, "it")
    assert given == taken
    assert type(given) is type(taken)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Whole(), True, "v must be a whole number of at least 0, got true"),
        (Whole(), 1.0, "v must be a whole number of at least 0, got 1.0"),
        (Whole(1, 9), 10, "v must be a whole number from 1 to 9, got 10"),
        (Whole(), 10**1000, "v must be a whole number of at least 0, got a number of 3322 bits"),
        (Real(), float("nan"), "v must be a finite number of at least 0, got nan"),
        (Real(), 10**400, "v must be a finite number of at least 0, got a number of 1329 bits"),
        (Real(above=True), 0.0, "v must be a finite number above 0, got 0.0"),
        (Real(most=1.0), 2, "v must be a finite number of at least 0 and at most 1, got 2"),
        (Real(), "1", "v must be a finite number of at least 0, got '1'"),
        (Text(), "", "v must be a non-empty text, got ''"),
        (Text(), "\ud800", r"v is no text that UTF-8 can hold: '\ud800'"),
        (Flag(), 1, "v must be true or false, got 1"),
        (OneOf((1,)), True, "v must be 1, got true"),
        (Maybe(Flag()), 0, "v must be true or false, got 0"),
        (ListOf(Whole()), {"a": 1}, "v must be a list, got an object of 1 entry"),
        (ListOf(Whole(), 1), [], "v must be a list of at least 1, got a list of 0 entries"),
        (
            ListOf(ListOf(Whole())),
            [[], [1, None]],
            "v[1][1] must be a whole number of at least 0, ",
        ),
        (MapOf(Text()), {1: "a"}, "v must have texts for keys, got 1"),
        (MapOf(MapOf(Text())), {"a b": {"c": 1}}, "v['a b'].c must be a non-empty text, got 1"),
        (POINT, [], "v must be an object, got a list of 0 entries"),
        (POINT, {"x": 0}, "v lacks 'label'; the keys are x, label and perhaps size"),
        (POINT, {"x": 0, "label": "a", "y": 1}, "v has the unknown key 'y'; the keys are x, label"),
        (ListOf(POINT), [{"x": "0", "label": "a"}], "v[0].x must be a finite number"),
    ],
)
def test_refuses(kind: Kind, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        checked(value, kind, "v")
    assert str(caught.value).startswith(message)


def test_the_class_of_the_error_is_chosen() -> None:
    with pytest.raises(KeyError, match="v must be"):
        checked(1, Text(), "v", KeyError)
    with pytest.raises(InvalidInputError, match=r"^x must be"):
        checked({"x": "a"}, Record({"x": Whole()}))


@pytest.mark.parametrize("value", [[0] * 10**6, "x" * 10**6, 10**9999, object()], ids=range(4))
def test_what_a_message_shows_is_short(value: Any) -> None:
    assert len(shown(value)) < 100
