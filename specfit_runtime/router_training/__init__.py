"""Trains the network behind the predictor ``learned`` on recorded decoding."""

from __future__ import annotations

from .train import RouterTraining, train_router

__all__ = ["RouterTraining", "train_router"]
