"""The expert cache: per-layer slots in fast memory, and counters of what moved."""

from __future__ import annotations

from .cache import ExpertCache, live_cache_rule
from .counters import CacheCounters
from .expert_slots import Snapshot
from .ready_batch import ReadyBatch
from .scratch import default_scratch

__all__ = [
    "CacheCounters",
    "ExpertCache",
    "ReadyBatch",
    "Snapshot",
    "default_scratch",
    "live_cache_rule",
]
