"""Trains the network behind the predictor ``learned`` on recorded decoding."""

from __future__ import annotations

from .train import PredictorTraining, train_predictor

__all__ = ["PredictorTraining", "train_predictor"]
