"""What a routing predictor is worth on recorded decoding: recall, unions, time, decisions."""

from __future__ import annotations

from .accuracy import UnionError
from .decisions import DecisionQuality
from .evaluation import PredictorEvaluation, evaluate_predictor
from .predictions import Predictions, predict_trace, teach

__all__ = [
    "DecisionQuality",
    "Predictions",
    "PredictorEvaluation",
    "UnionError",
    "evaluate_predictor",
    "predict_trace",
    "teach",
]
