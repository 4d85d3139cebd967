"""What one predictor came to on one trace."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decisions import DecisionQuality
from .unions import UnionError


@dataclass(frozen=True, eq=False, kw_only=True)
class RouterEvaluation:
    """The figures of a predictor on a trace.

    Attributes
    ----------
    trace, predictor : str
    nodes, accepted_nodes : ndarray of int64, shape (D + 1,)
        Nodes of each depth; those of them on the target's greedy path.
    recall, accepted_recall : ndarray of float64, shape (D + 1, L)
        Mean share of a node's true experts that were predicted, by depth and layer; NaN without a
        node.
    unions : tuple of UnionError
    decisions : tuple of DecisionQuality
        By machine, then by cache size.
    predict_seconds : tuple of float
        Median time of predicting the nodes of each depth of one position.
    """

    trace: str
    predictor: str
    nodes: NDArray[np.int64]
    accepted_nodes: NDArray[np.int64]
    recall: NDArray[np.float64]
    accepted_recall: NDArray[np.float64]
    unions: tuple[UnionError, ...]
    decisions: tuple[DecisionQuality, ...]
    predict_seconds: tuple[float, ...]

    @property
    def recall_by_depth(self) -> NDArray[np.float64]:
        """Mean over the layers, shape (D + 1,)."""
        means: NDArray[np.float64] = self.recall.mean(axis=1)
        return means

    @property
    def recall_by_layer(self) -> NDArray[np.float64]:
        """Mean over the drafted nodes, the root excluded, shape (L,); NaN if none was drafted."""
        return _over_depths(self.recall, self.nodes)

    @property
    def accepted_recall_by_layer(self) -> NDArray[np.float64]:
        """Mean over the accepted nodes, the root excluded, shape (L,); NaN if there is none."""
        return _over_depths(self.accepted_recall, self.accepted_nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return figures and means as plain Python values and arrays, ready for JSON."""
        data: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        data["unions"] = [dataclasses.asdict(union) for union in self.unions]
        data["decisions"] = [dataclasses.asdict(decision) for decision in self.decisions]
        for name in ("recall_by_depth", "recall_by_layer", "accepted_recall_by_layer"):
            data[name] = getattr(self, name)
        return data


def _over_depths(recall: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    drafted = np.flatnonzero(count[1:]) + 1
    if not drafted.size:
        return np.full(recall.shape[1], np.nan)
    return np.average(recall[drafted], axis=0, weights=count[drafted])
