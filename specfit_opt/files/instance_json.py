"""Small instances written by hand: one JSON object.

.. code-block:: json

    {
      "format": "specfit-instance", "version": 1,
      "name": "three nodes",
      "comment": "anything",
      "parent":    [-1, 0, 0],
      "path_prob": [1, 0.8, 0.1],
      "n_experts": 5,
      "experts":   [[[0, 1]], [[0, 2]], [[3, 4]]],
      "resident":  [[0, 4]],
      "fixed_time": 0.03,
      "node_time": [0, 0.001, 0.001, "inf"],
      "expert_time": 0.002,
      "resident_time": 0
    }

========================  ========================================================================
key                       value
========================  ========================================================================
``parent``                per node its parent, -1 for a root; parents before their children
``path_prob``             per node the path probability; or instead
``conditional_prob``      the probability given that the parent was accepted
``experts``               per node and layer a list of expert ids; lists may differ in length
``n_experts``             experts per layer
``resident``              list of [layer, expert] pairs, or a matrix of true and false, one row
                          per layer; omitted: none
``fixed_time``            seconds
``node_time``             seconds per node, or a table indexed by number of nodes whose entry 0 is
                          not used; null or "inf": size not allowed
``expert_time``           seconds per expert: a number, one per layer, or a row per layer
``resident_time``         seconds; omitted: 0
``name``, ``comment``     free text; omitted: the file's name, none
``format``, ``version``   omitted, or "specfit-instance" and 1
========================  ========================================================================

An unknown or repeated key is an error, so that a misspelt one is not lost.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..cost import CostModel
from ..errors import InvalidInputError
from ..instance import Instance
from ..routing import ExpertRouting
from ..tree import DraftTree
from .archive import named
from .atomic import atomic_write

FORMAT = "specfit-instance"
VERSION = 1

_REQUIRED = ("parent", "experts", "n_experts", "fixed_time", "node_time", "expert_time")
_OPTIONAL = (
    "path_prob",
    "conditional_prob",
    "resident",
    "resident_time",
    "name",
    "comment",
    "format",
    "version",
)


def load_json(path: str | os.PathLike[str]) -> Instance:
    """Load an instance from a JSON file; see :func:`specfit_opt.load_instance`."""
    with open(path, "rb") as handle:
        content = handle.read()
    with named(path):
        data = _parse(content)
        _check_keys(data)
        return _build(data, Path(path).stem)


def save_json(path: str | os.PathLike[str], instance: Instance) -> None:
    """Save an instance as a JSON file; see :func:`specfit_opt.save_instance`.

    Entry 0 of a node_time table, which is not used, is written as 0 where it is not finite.
    """
    tree, routing, cost = instance.tree, instance.routing, instance.cost_model
    node_time: Any = cost.node_time
    if not isinstance(node_time, float):
        node_time = ["inf" if math.isinf(t) else t for t in node_time.tolist()]
        if not math.isfinite(cost.node_time[0]):  # type: ignore[index]
            node_time[0] = 0.0
    expert_time = cost.expert_time
    short: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": instance.name,
        "parent": tree.parent.tolist(),
        "path_prob": tree.path_prob.tolist(),
        "n_experts": routing.n_experts,
        "resident": np.argwhere(routing.resident).tolist(),
        "fixed_time": cost.fixed_time,
        "node_time": node_time,
        "expert_time": expert_time if isinstance(expert_time, float) else expert_time.tolist(),
        "resident_time": cost.resident_time,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in short.items()]
    # One node per line, so that a person finds it.
    nodes = ",\n    ".join(json.dumps(node) for node in routing.experts.tolist())
    lines.append(f'"experts": [\n    {nodes}\n  ]')
    with atomic_write(path, "w") as handle:
        handle.write("{\n  " + ",\n  ".join(lines) + "\n}\n")


def _parse(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
        )
    except InvalidInputError:
        raise
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"the file is not UTF-8 text ({error.reason} at byte {error.start}); an instance in "
            "binary form has the extension .npz"
        ) from error
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"the file is no JSON, or was truncated: {error.msg} in line {error.lineno}, column "
            f"{error.colno}"
        ) from error
    except (RecursionError, ValueError) as error:  # lists in lists without end, endless digits
        raise InvalidInputError(f"the file is no instance: {error}") from error
    if not isinstance(data, dict):
        raise InvalidInputError(
            f"the file holds a {_kind(data)} at the top; an instance is one object in braces"
        )
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise InvalidInputError(f"the key {key!r} occurs twice; keep one")
        data[key] = value
    return data


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidInputError(
        f'{text} is not JSON; write null or "inf" in node_time for a size that is not allowed'
    )


def _check_keys(data: dict[str, Any]) -> None:
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise InvalidInputError(
            f"lacks {', '.join(map(repr, missing))}; an instance needs {', '.join(_REQUIRED)} and "
            "path_prob or conditional_prob"
        )
    unknown = [key for key in data if key not in _REQUIRED + _OPTIONAL]
    if unknown:
        raise InvalidInputError(
            f"has the unknown key {unknown[0]!r}; the keys are {', '.join(_REQUIRED + _OPTIONAL)} "
            "(put remarks in comment)"
        )
    if ("path_prob" in data) == ("conditional_prob" in data):
        raise InvalidInputError("give either path_prob or conditional_prob")
    if data.get("format", FORMAT) != FORMAT:
        raise InvalidInputError(f"has format {data['format']!r}; an instance has {FORMAT!r}")
    if data.get("version", VERSION) != VERSION:
        raise InvalidInputError(
            f"has version {data['version']!r}; this release reads version {VERSION}"
        )
    if not isinstance(data.get("name", ""), str):
        raise InvalidInputError(f"name must be text, got {data['name']!r}")


def _build(data: dict[str, Any], default_name: str) -> Instance:
    experts = _experts(data["experts"])
    n_experts = data["n_experts"]
    if not _is_integer(n_experts):
        raise InvalidInputError(f"n_experts must be an integer, got {_kind(n_experts)}")
    parent = _list(data["parent"], "parent")
    if "path_prob" in data:
        tree = DraftTree(parent, _list(data["path_prob"], "path_prob"))
    else:
        tree = DraftTree.from_conditional(
            parent, _list(data["conditional_prob"], "conditional_prob")
        )
    return Instance(
        tree,
        ExpertRouting(
            experts, n_experts, _resident(data.get("resident"), experts.shape[1], n_experts)
        ),
        CostModel(
            _number(data["fixed_time"], "fixed_time"),
            _node_time(data["node_time"]),
            _times(data["expert_time"], "expert_time"),
            _number(data.get("resident_time", 0.0), "resident_time"),
        ),
        name=data.get("name", default_name),
    )


def _experts(value: Any) -> NDArray[np.integer]:
    nodes = _list(value, "experts")
    if not nodes:
        raise InvalidInputError("experts is empty; give per node and layer a list of expert ids")
    layers = [_list(node, f"experts[{v}]") for v, node in enumerate(nodes)]
    n_layers = len(layers[0])
    width = 0
    for v, node in enumerate(layers):
        if len(node) != n_layers:
            raise InvalidInputError(
                f"experts[{v}] has {len(node)} layers but experts[0] has {n_layers}; give every "
                "node one list per layer"
            )
        for layer, ids in enumerate(node):
            where = f"experts[{v}][{layer}]"
            width = max(width, len(_list(ids, where)))
            for expert in ids:
                if not _is_integer(expert) or not -1 <= expert <= np.iinfo(np.int32).max:
                    raise InvalidInputError(
                        f"{where} holds {expert!r}; expert ids are integers from 0"
                    )
    padded = np.full((len(layers), n_layers, width), -1, dtype=np.int32)
    for v, node in enumerate(layers):
        for layer, ids in enumerate(node):
            padded[v, layer, : len(ids)] = ids
    if padded.size and padded.max() > np.iinfo(np.int16).max:
        return padded
    return padded.astype(np.int16)


def _resident(value: Any, n_layers: int, n_experts: int) -> NDArray[np.bool_] | None:
    if value is None:
        return None
    rows = [_list(row, f"resident[{i}]") for i, row in enumerate(_list(value, "resident"))]
    if rows and all(isinstance(x, bool) for row in rows for x in row):
        if len(rows) != n_layers or any(len(row) != n_experts for row in rows):
            raise InvalidInputError(
                f"resident is a matrix of {len(rows)} rows of "
                f"{'/'.join(str(n) for n in sorted({len(row) for row in rows}))} entries; "
                f"experts and n_experts call for {n_layers} rows (layers) of {n_experts}"
            )
        return np.array(rows, dtype=np.bool_)
    mask = np.zeros((n_layers, n_experts), dtype=np.bool_)
    for i, row in enumerate(rows):
        if len(row) != 2 or not all(_is_integer(x) for x in row):
            raise InvalidInputError(
                f"resident[{i}] = {row!r} is no [layer, expert] pair of integers; a matrix must "
                "hold true and false alone"
            )
        layer, expert = row
        if not (0 <= layer < n_layers and 0 <= expert < n_experts):
            raise InvalidInputError(
                f"resident[{i}] = {row!r} is no expert of {n_layers} layers of {n_experts} experts"
            )
        mask[layer, expert] = True
    return mask


def _node_time(value: Any) -> Any:
    if not isinstance(value, list):
        return _number(value, "node_time")
    return [
        math.inf if t is None or t == "inf" else _number(t, f"node_time[{k}]")
        for k, t in enumerate(value)
    ]


def _times(value: Any, name: str) -> Any:
    if not isinstance(value, list):
        return _number(value, name)
    return [_times(item, f"{name}[{i}]") for i, item in enumerate(value)]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInputError(f"{name} must be a number of seconds, got {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # 1e400 reads as infinite, which must not mean "not allowed"
        raise InvalidInputError(f"{name} must be a finite number of seconds, got {number}")
    return number


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInputError(f"{name} must be a list, got {_kind(value)}")
    return value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    names: Iterable[tuple[type | tuple[type, ...], str]] = (
        (bool, f"{value!r}".lower()),
        (type(None), "null"),
        (str, f"the text {value!r}"),
        ((int, float), f"the number {value!r}"),
        (list, "list"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), "object")
