"""Eviction rules, one file and one entry here each, for simulated and for real expert caches."""

from __future__ import annotations

from ..registry import Registry
from . import belady, fifo, lfu, lru, lru_2
from .eviction_rule import CacheRule, EvictionRule
from .simulated import SimulatedCache
from .size import slots_of, slots_per_layer

#: Every eviction rule by the name that ``cache_policy`` takes.
CACHE_RULES: Registry[CacheRule] = Registry(
    "cache policy",
    (module.RULE for module in (lru, lru_2, lfu, fifo, belady)),
    plural="cache policies",
)

#: What misses least on the traces and texts of docs/results/caches.rst.
DEFAULT_CACHE_RULE = "lfu"

__all__ = [
    "CACHE_RULES",
    "DEFAULT_CACHE_RULE",
    "CacheRule",
    "EvictionRule",
    "SimulatedCache",
    "slots_of",
    "slots_per_layer",
]
