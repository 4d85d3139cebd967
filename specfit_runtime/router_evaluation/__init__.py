"""What a routing predictor is worth on recorded decoding: recall, unions, time, decisions."""

from __future__ import annotations

from .decisions import DecisionQuality
from .evaluate import evaluate_router
from .predictions import Predictions, predict_trace, teach
from .result import RouterEvaluation
from .unions import UnionError

__all__ = [
    "DecisionQuality",
    "Predictions",
    "RouterEvaluation",
    "UnionError",
    "evaluate_router",
    "predict_trace",
    "teach",
]
