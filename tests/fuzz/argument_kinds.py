"""Functions and classes of both packages: good arguments, of which some are replaced."""

from __future__ import annotations

import atexit
import copy
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.json_mutations import VALUES

#: What no file can hold, but a caller may give.
_OBJECTS: tuple[Any, ...] = (
    float("nan"),
    float("inf"),
    -float("inf"),
    10**400,
    -(10**400),
    1 + 2j,
    b"x",
    set(),
    object(),
    print,
    "\ud800",
    np.float64("nan"),
    np.int64(-1),
    np.uint64(2**64 - 1),
    np.array(None),
    np.array([1, "x"], dtype=object),
    np.zeros((0, 3)),
    np.zeros((2, 2, 2, 2)),
    np.array("x"),
    np.array([True, False]),
    [[1], [1, 2]],
    [0.5, float("nan")],
    range(3),
    {1: 2},
    Path("/nowhere"),
)


@dataclass(frozen=True)
class ArgumentKind:
    """Something that is called.

    Attributes
    ----------
    call : callable
        Takes the arguments by name.
    arguments : callable
        Returns good ones.
    weight : float
        See `FuzzKind`.
    """

    call: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    weight: float = 1.0

    def case(self, name: str, seed: int | None, folder: Path) -> Callable[[], Any]:
        """Return the call with one or two arguments replaced."""
        rng = random.Random(f"{name} {seed}")
        arguments = dict(self.arguments())
        if seed is None:
            return lambda: self.call(**arguments)
        for key in rng.sample(sorted(arguments), min(len(arguments), rng.choice([1, 1, 1, 2]))):
            arguments[key] = _replaced(arguments[key], rng)
        return lambda: self.call(**arguments)


def _replaced(value: Any, rng: random.Random) -> Any:
    if isinstance(value, (list, np.ndarray)) and rng.random() < 0.6:
        array = np.array(value)
        if array.size:
            action = rng.randrange(5)
            if action == 0:
                return array[1:]
            if action == 1:
                return array[None]
            if action == 2:
                return array.astype(rng.choice([object, np.float32, np.int8, bool, np.complex64]))
            number = rng.choice([-1, 2**15, 1e300, 5e-324, float("nan"), float("inf")])
            if array.dtype.kind in "iub" and not np.isfinite(number):
                number = -1
            if array.dtype.kind in "iub":
                number = int(min(number, 2**31 - 1))
            array.reshape(-1)[rng.randrange(array.size)] = number
            return array
    return copy.copy(rng.choice(VALUES + _OBJECTS))


# ---- the optimisation library

_PARENT, _PROB = [-1, 0, 0, 1], [1.0, 0.8, 0.1, 0.5]
_EXPERTS = [[[0, 1]], [[0, 2]], [[3, 4]], [[1, 2]]]


@cache
def _problem() -> tuple[Any, Any, Any]:
    from specfit_opt import CostModel, DraftTree, ExpertRouting

    return DraftTree(_PARENT, _PROB), ExpertRouting(_EXPERTS, 5), CostModel(1.0, 0.01, 0.2)


def _tree(**arguments: Any) -> None:
    from specfit_opt import DraftTree

    DraftTree(**arguments)


def _conditional(**arguments: Any) -> None:
    from specfit_opt import DraftTree

    DraftTree.from_conditional(**arguments)


def _routing(**arguments: Any) -> None:
    from specfit_opt import ExpertRouting

    ExpertRouting(**arguments)


def _scenarios(**arguments: Any) -> None:
    from specfit_opt import ExpertRouting

    ExpertRouting.from_scenarios(**arguments)


def _cost(**arguments: Any) -> None:
    from specfit_opt import CostModel, solve

    tree, routing, _ = _problem()
    solve(tree, routing, CostModel(**arguments)).to_dict()


def _solve(**arguments: Any) -> None:
    from specfit_opt import solve

    solve(*_problem(), **arguments).to_dict()


def _search(**arguments: Any) -> None:
    from specfit_opt import TreeSearch

    growth = {key: arguments.pop(key) for key in ("parent", "path_prob", "experts", "draft_time")}
    level_time = arguments.pop("level_time")
    search = TreeSearch(**arguments)
    search.extend([-1], [1.0], [[[0, 1]]])
    search.extend(**growth)
    search.advise(level_time=level_time)


def _generated(**arguments: Any) -> None:
    from specfit_opt.generate import generate

    generate(**arguments)


def _hardware_profile(**arguments: Any) -> None:
    from specfit_opt.profiles import HardwareProfile

    HardwareProfile(**arguments).cost_model(2, 4, 1000)


# ---- the runtime


@cache
def _checkpoint() -> Path:
    from tiny_models import tiny_checkpoint

    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place)
    return tiny_checkpoint("qwen3_moe", place)


@cache
def _model() -> Any:
    from specfit_runtime import load_offloaded

    return load_offloaded(_checkpoint(), expert_cache=4, io_threads=1)


def _load(**arguments: Any) -> None:
    from specfit_runtime import load_offloaded, offload_of

    offload_of(load_offloaded(**arguments)).close()


def _specfit(**arguments: Any) -> None:
    from specfit_runtime import SpecFit

    SpecFit(**arguments)


def _calibrate(**arguments: Any) -> None:
    from specfit_runtime import calibrate

    calibrate(_model(), "prompt-lookup", **arguments)


ARGUMENT_KINDS: dict[str, ArgumentKind] = {
    "DraftTree": ArgumentKind(_tree, lambda: {"parent": _PARENT, "path_prob": _PROB}),
    "DraftTree.from_conditional": ArgumentKind(
        _conditional, lambda: {"parent": _PARENT, "prob": _PROB}
    ),
    "ExpertRouting": ArgumentKind(
        _routing, lambda: {"experts": _EXPERTS, "n_experts": 5, "resident": [[True] * 5]}
    ),
    "ExpertRouting.from_scenarios": ArgumentKind(
        _scenarios, lambda: {"experts": [_EXPERTS] * 2, "n_experts": 5, "weights": [0.5, 0.5]}
    ),
    "CostModel": ArgumentKind(
        _cost,
        lambda: {
            "fixed_time": 1.0,
            "node_time": [0.0, 0.1, 0.2, 0.3, 0.4],
            "expert_time": [0.2],
            "resident_time": 0.1,
        },
    ),
    "solve": ArgumentKind(
        _solve, lambda: {"method": "exact", "rate": 0.1, "max_nodes": 3, "time_limit": 1.0}
    ),
    "TreeSearch": ArgumentKind(
        _search,
        lambda: {
            "cost_model": _problem()[2],
            "n_layers": 1,
            "n_experts": 5,
            "resident": [[True] * 5],
            "rate": 0.1,
            "parent": [0, 0],
            "path_prob": [0.8, 0.1],
            "experts": [[[0, 2]], [[3, 4]]],
            "draft_time": 0.05,
            "level_time": 0.05,
        },
    ),
    "generate": ArgumentKind(
        _generated,
        lambda: {
            "kind": "tiny",
            "seed": 1,
            "nodes": 12,
            "roots": 1,
            "layers": 2,
            "experts": 8,
            "top_k": 2,
            "node_time": "affine",
            "resident": 0.5,
            "overlap": 0.5,
            "skew": 1.0,
            "bandwidth": 1e9,
            "resident_time": 0.0,
            "token_time": 1e-4,
            "time_spread": 0.1,
        },
    ),
    "HardwareProfile": ArgumentKind(
        _hardware_profile,
        lambda: {
            "name": "mine",
            "fixed_time": 0.01,
            "node_time": [0.0, 1e-3],
            "draft_time": 1e-3,
            "bandwidth": 1e10,
            "resident_bandwidth": 1e12,
            "layer_repeat": 2,
            "expert_bytes": 1000,
            "source": {"bandwidth": "measured"},
        },
    ),
    "load_offloaded": ArgumentKind(
        _load,
        lambda: {
            "model": _checkpoint(),
            "expert_cache": 0.25,
            "store": "disk",
            "device": "cpu",
            "dtype": "float32",
            "cache_policy": "lru",
            "attn_implementation": "eager",
            "scratch": 4,
            "direct_io": False,
            "io_threads": 1,
            "link_bandwidth": 1e9,
        },
        0.3,
    ),
    "SpecFit": ArgumentKind(
        _specfit,
        lambda: {
            "drafter": "prompt-lookup",
            "policy": "specfit",
            "predictor": "frequency",
            "profile": None,
            "prefetch": False,
        },
    ),
    "calibrate": ArgumentKind(
        _calibrate,
        lambda: {
            "max_nodes": 2,
            "repeats": 1,
            "prompt": [1, 2, 3],
            "draft_levels": 1,
        },
        0.1,
    ),
}
