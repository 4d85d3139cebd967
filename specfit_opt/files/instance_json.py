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

An unknown or repeated key is an error, so that a misspelt one is not lost. A file has at most
16 MiB and 2**20 values (see :mod:`specfit_opt.files.strict_json`), and its ``experts``, padded to
the longest list, at most 2**24 entries: larger instances are for ``.npz``.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Anything, Flag, Maybe, OneOf, Real, Text, Whole, checked
from ..cost import CostModel
from ..errors import InvalidInputError
from ..instance import Instance
from ..routing import ExpertRouting
from ..schema import Either, ListOf, Record
from ..tree import DraftTree
from .archive import named
from .atomic import atomic_write
from .strict_json import MAX_BYTES, check_extent, read_json

FORMAT = "specfit-instance"
VERSION = 1

#: Entries of ``experts`` when every list is as long as the longest.
MAX_SLOTS = 2**24

_MAX_ID = int(np.iinfo(np.int32).max)
_SECONDS = Real(unit="seconds")
_PROBABILITIES = ListOf(Real())

_FILE = Record(
    {
        "parent": ListOf(Whole(-1, _MAX_ID)),
        "experts": ListOf(ListOf(ListOf(Whole(-1, _MAX_ID))), 1),
        "n_experts": Whole(1),
        "fixed_time": _SECONDS,
        "node_time": Either(_SECONDS, ListOf(Real(unit="seconds", infinite=True))),
        "expert_time": Either(_SECONDS, ListOf(Either(_SECONDS, ListOf(_SECONDS)))),
    },
    {
        "path_prob": _PROBABILITIES,
        "conditional_prob": _PROBABILITIES,
        "resident": Maybe(ListOf(ListOf(Anything()))),
        "resident_time": _SECONDS,
        "name": Text(empty=True),
        "comment": Anything(),
        "format": OneOf((FORMAT,)),
        "version": OneOf((VERSION,)),
    },
)


def load_json(path: str | os.PathLike[str]) -> Instance:
    """Load an instance from a JSON file; see :func:`specfit_opt.load_instance`."""
    data = read_json(path, _FILE)
    with named(path):
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
    content = ("{\n  " + ",\n  ".join(lines) + "\n}\n").encode()
    with named(path):
        _check_readable(content)
    with atomic_write(path) as handle:
        handle.write(content)


def _check_readable(content: bytes) -> None:
    """Refuse to write what `load_json` would refuse to read."""
    try:
        if len(content) > MAX_BYTES:
            raise InvalidInputError(
                f"has {len(content)} bytes as JSON; at most {MAX_BYTES} are read"
            )
        check_extent(content)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}; save it as .npz") from None


def _build(data: dict[str, Any], default_name: str) -> Instance:
    if ("path_prob" in data) == ("conditional_prob" in data):
        raise InvalidInputError("give either path_prob or conditional_prob")
    if "path_prob" in data:
        tree = DraftTree(data["parent"], data["path_prob"])
    else:
        tree = DraftTree.from_conditional(data["parent"], data["conditional_prob"])
    # The routing checks its size before the resident experts take memory by it.
    routing = ExpertRouting(_experts(data["experts"]), data["n_experts"])
    resident = data.get("resident")
    if resident is not None:
        routing = routing.with_resident(_resident(resident, routing.n_layers, routing.n_experts))
    cost = CostModel(
        data["fixed_time"], data["node_time"], data["expert_time"], data.get("resident_time", 0.0)
    )
    return Instance(tree, routing, cost, name=data.get("name", default_name))


def _experts(nodes: list[list[list[int]]]) -> NDArray[np.integer]:
    n_layers = len(nodes[0])
    for v, node in enumerate(nodes):
        if len(node) != n_layers:
            raise InvalidInputError(
                f"experts[{v}] has {len(node)} layers but experts[0] has {n_layers}; give every "
                "node one list per layer"
            )
    width = max((len(ids) for node in nodes for ids in node), default=0)
    if len(nodes) * n_layers * width > MAX_SLOTS:
        raise InvalidInputError(
            f"experts has {len(nodes)} nodes of {n_layers} layers of up to {width} ids; at most "
            f"{MAX_SLOTS} entries are read, padded to the longest list"
        )
    padded = np.full((len(nodes), n_layers, width), -1, dtype=np.int32)
    for v, node in enumerate(nodes):
        for layer, ids in enumerate(node):
            padded[v, layer, : len(ids)] = ids
    if padded.size and padded.max() > np.iinfo(np.int16).max:
        return padded
    return padded.astype(np.int16)


def _resident(rows: list[list[Any]], n_layers: int, n_experts: int) -> NDArray[np.bool_]:
    if rows and all(isinstance(x, bool) for row in rows for x in row):
        of_layers = ListOf(ListOf(Flag(), n_experts, n_experts), n_layers, n_layers)
        return np.array(checked(rows, of_layers, "resident"), dtype=np.bool_)
    mask = np.zeros((n_layers, n_experts), dtype=np.bool_)
    for i, pair in enumerate(checked(rows, ListOf(ListOf(Whole(), 2, 2)), "resident")):
        layer, expert = pair
        if layer >= n_layers or expert >= n_experts:
            raise InvalidInputError(
                f"resident[{i}] = {pair} is no expert of {n_layers} layers of {n_experts} experts"
            )
        mask[layer, expert] = True
    return mask
