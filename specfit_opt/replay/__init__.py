"""Replay of recorded decoding under any policy, with the expert cache simulated in the loop."""

from __future__ import annotations

from .policies import (
    FIXED_POLICIES,
    OBJECTIVES,
    POLICIES,
    Policy,
    default_policies,
    make_policy,
)
from .result import ReplayResult
from .setting import DEFAULT_CACHE, ReplaySetting
from .summary import PolicySummary, replay_table, summarise
from .walk import WARMUP, replay

__all__ = [
    "DEFAULT_CACHE",
    "FIXED_POLICIES",
    "OBJECTIVES",
    "POLICIES",
    "WARMUP",
    "Policy",
    "PolicySummary",
    "ReplayResult",
    "ReplaySetting",
    "default_policies",
    "make_policy",
    "replay",
    "replay_table",
    "summarise",
]
