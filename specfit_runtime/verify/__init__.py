"""Verifying a tree of draft tokens with the target: one pass, exact acceptance, a clean cache."""

from __future__ import annotations

from .acceptance import Accepted, accept
from .compaction import CachePoint
from .session import ForwardResult, TargetSession
from .tree_mask import TreeShape

__all__ = ["Accepted", "CachePoint", "ForwardResult", "TargetSession", "TreeShape", "accept"]
