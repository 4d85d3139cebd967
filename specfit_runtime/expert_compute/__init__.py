"""Computes with experts in slots, bit for bit as stock does with all of them in one tensor."""

from __future__ import annotations

from .compute import compute_batch
from .rows import Rows
from .weights import SlabWeights, slab_weights

__all__ = ["Rows", "SlabWeights", "compute_batch", "slab_weights"]
