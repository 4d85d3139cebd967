"""Node times: how a pass grows with the number of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..registry import Registry

#: Sizes at which the curved kinds meet the affine one.
_REFERENCE = 64.0


@dataclass(frozen=True)
class NodeTime:
    """A kind of node time.

    Attributes
    ----------
    name : str
    build : callable
        ``build(n_nodes, slope, budget)`` returns seconds per node or a table of ``n_nodes`` + 1
        entries.
    source : str
        Where such times occur.
    """

    name: str
    build: Callable[[int, float, int], float | NDArray[np.float64]]
    source: str


def _affine(n_nodes: int, slope: float, budget: int) -> float:
    return slope


def _power(exponent: float) -> Callable[[int, float, int], NDArray[np.float64]]:
    def build(n_nodes: int, slope: float, budget: int) -> NDArray[np.float64]:
        sizes = np.arange(n_nodes + 1, dtype=np.float64)
        return slope * _REFERENCE * (sizes / _REFERENCE) ** exponent

    return build


def _step(width: int) -> Callable[[int, float, int], NDArray[np.float64]]:
    def build(n_nodes: int, slope: float, budget: int) -> NDArray[np.float64]:
        return slope * width * np.ceil(np.arange(n_nodes + 1) / width)

    return build


def _budget(n_nodes: int, slope: float, budget: int) -> NDArray[np.float64]:
    table = slope * np.arange(n_nodes + 1, dtype=np.float64)
    table[budget + 1 :] = math.inf
    return table


#: Every form of node time by name.
NODE_TIMES: Registry[NodeTime] = Registry(
    "node_time",
    (
        NodeTime("affine", _affine, "a fixed time per token: memory-bound passes"),
        NodeTime(
            "concave", _power(0.5), "square root: few tokens leave the device idle, more fill it"
        ),
        NodeTime("convex", _power(1.7), "power 1.7: past the ridge of the roofline, and attention"),
        NodeTime("step8", _step(8), "kernels pad the tokens of a pass to tiles of 8"),
        NodeTime("step16", _step(16), "kernels pad the tokens of a pass to tiles of 16"),
        NodeTime(
            "budget", _budget, "affine up to the largest pass that was set up, then forbidden"
        ),
    ),
)
