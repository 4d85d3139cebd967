"""Mutations of JSON: of values where they stand, and of the text."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

#: What somebody may have written where something else was meant.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    -(2**31),
    2**31,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e-300,
    5e-324,
    1e30,
    1e300,
    1.7976931348623157e308,
    "",
    "x",
    "inf",
    "../x",
    "\x00",
    "a" * 1000,
    [],
    [[]],
    {},
    [None],
    [1e30, -1],
    {"a": {"b": []}},
)

#: What no writer of JSON writes, put in place of a value.
TEXTS = (
    "NaN",
    "-Infinity",
    "1e400",
    "-1e999",
    "1" + "0" * 400,
    "9" * 5000,
    "0." + "0" * 5000 + "1",
    "[" * 200 + "]" * 200,
    "[" * 100_000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '"\\ud800"',
    '"\\u0000"',
    "01",
    "tru",
    "'x'",
    "{,}",
)

_MARK = "@@place@@"


def mutate_json(text: str, rng: random.Random) -> bytes:
    """Return ``text``, one JSON value or several lines of them, changed in one place."""
    lines = text.splitlines() if _is_lines(text) else [text]
    i = rng.randrange(len(lines))
    if len(lines) > 1 and rng.random() < 0.2:
        _mutate_list(lines, rng)
        return "\n".join(map(str, lines)).encode("utf-8", "surrogatepass")
    data = json.loads(lines[i])
    path = rng.choice(list(_paths(data)))
    action = rng.randrange(8)
    if action == 0:
        lines[i] = json.dumps(_with(data, path, _MARK)).replace(
            json.dumps(_MARK), rng.choice(TEXTS)
        )
    elif action == 1:
        lines[i] = _with_duplicate_key(data, rng)
    else:
        value = copy.deepcopy(_at(data, path))
        lines[i] = json.dumps(_with(data, path, _changed(value, data, rng)))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _is_lines(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return True
    return False


def _changed(value: Any, whole: Any, rng: random.Random) -> Any:
    """Return a value in place of ``value``."""
    action = rng.randrange(5)
    if action == 0 and isinstance(value, list) and value:
        _mutate_list(value, rng)
        return value
    if action <= 1 and isinstance(value, dict) and value:
        key = rng.choice(list(value))
        entry = value.pop(key)
        if rng.random() < 0.5:
            value[rng.choice([key + "_", key.upper(), "", "é"])] = entry
        return value
    if action == 2 and isinstance(value, (int, float)) and not isinstance(value, bool):
        return rng.choice([-value, value * 2, value + 1, value * 1e6, float(value), str(value)])
    if action == 3:
        return copy.deepcopy(_at(whole, rng.choice(list(_paths(whole)))))
    return copy.deepcopy(rng.choice(VALUES))


def _mutate_list(value: list[Any], rng: random.Random) -> None:
    i, j = rng.randrange(len(value)), rng.randrange(len(value))
    action = rng.randrange(4)
    if action == 0:
        del value[i]
    elif action == 1:
        value[i], value[j] = value[j], value[i]
    elif action == 2:
        value.insert(i, copy.deepcopy(value[j]))
    else:
        value.extend(copy.deepcopy(value[i]) for _ in range(rng.choice([1, 100])))


def _with_duplicate_key(data: Any, rng: random.Random) -> str:
    text = json.dumps(data)
    if not isinstance(data, dict) or not data:
        return text
    key = rng.choice(list(data))
    return text[:-1] + f", {json.dumps(key)}: {json.dumps(rng.choice(VALUES))}}}"


def _paths(data: Any, at: tuple[Any, ...] = ()) -> Any:
    yield at
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _paths(value, (*at, key))
    elif isinstance(data, list):
        for i, value in enumerate(data[:8]):
            yield from _paths(value, (*at, i))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _with(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    data = copy.deepcopy(data)
    _at(data, path[:-1])[path[-1]] = value
    return data
