"""The expert cache: per-layer slots in fast memory, and counters of what moved."""

from __future__ import annotations

from .cache import ExpertCache
from .counters import CacheCounters
from .eviction import (
    DEFAULT_EVICTION,
    EVICTION_POLICIES,
    EvictionKind,
    EvictionPolicy,
    get_eviction_policy,
)
from .ready_batch import ReadyBatch
from .size import default_scratch, slots_per_layer

__all__ = [
    "DEFAULT_EVICTION",
    "EVICTION_POLICIES",
    "CacheCounters",
    "EvictionKind",
    "EvictionPolicy",
    "ExpertCache",
    "ReadyBatch",
    "default_scratch",
    "get_eviction_policy",
    "slots_per_layer",
]
