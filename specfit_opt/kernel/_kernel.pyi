"""Types of the compiled kernel. What the functions do is told in twin.py."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .twin import Figures, Result

NAME: str
ROWS: str
ROW_VARIABLE: str
CHECKED: bool
BUILD: dict[str, str]

def row_versions() -> list[str]: ...
def pack(experts: NDArray[np.integer[Any]], n_experts: int) -> tuple[NDArray[np.uint64], int]: ...
def evaluate(
    mask: NDArray[np.bool_],
    path_prob: NDArray[np.float64],
    rows: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    expert_time: NDArray[np.float64],
    resident_time: float,
) -> Figures: ...
def solve(
    parent: NDArray[np.int32],
    path_prob: NDArray[np.float64],
    rows: NDArray[np.uint64],
    resident: NDArray[np.bool_],
    expert_time: NDArray[np.float64],
    resident_time: float,
    fixed_time: float,
    node_time: float | NDArray[np.float64],
    rate: float,
    max_nodes: int,
    time_limit: float,
) -> Result: ...

class TreeState:
    def __init__(
        self,
        resident: NDArray[np.bool_],
        expert_time: NDArray[np.float64],
        resident_time: float,
    ) -> None: ...
    resident_mask: NDArray[np.bool_]
    @property
    def n_nodes(self) -> int: ...
    def extend(
        self,
        parent: NDArray[np.int32],
        path_prob: NDArray[np.float64],
        experts: NDArray[np.integer[Any]],
    ) -> int: ...
    def extend_rows(
        self,
        parent: NDArray[np.int32],
        path_prob: NDArray[np.float64],
        rows: NDArray[np.uint64],
    ) -> None: ...
    def truncate(self, n: int) -> None: ...
    def nodes(self) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.uint64]]: ...
    def reprice(self, expert_time: NDArray[np.float64], resident_time: float) -> None: ...
    def novelty(self) -> NDArray[np.float64]: ...
    def solve(
        self,
        fixed_time: float,
        node_time: float | NDArray[np.float64],
        rate: float,
        max_nodes: int,
        time_limit: float,
        virtual_parent: NDArray[np.int32] | None = None,
        virtual_prob: NDArray[np.float64] | None = None,
        virtual_time: NDArray[np.float64] | None = None,
    ) -> Result: ...
