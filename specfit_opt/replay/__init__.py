"""Replay of recorded decoding under any policy, with the expert cache simulated in the loop."""

from __future__ import annotations

from .overlap import Overlap
from .recorded_decode import RecordedDecode, ReplayedCycle, SimulatedMachine
from .recorded_view import RecordedView
from .replay import WARMUP, default_policies, replay
from .result import ReplayResult
from .setting import DEFAULT_CACHE, ReplaySetting
from .summary import PolicySummary, replay_table, summarise

__all__ = [
    "DEFAULT_CACHE",
    "WARMUP",
    "Overlap",
    "PolicySummary",
    "RecordedDecode",
    "RecordedView",
    "ReplayResult",
    "ReplaySetting",
    "ReplayedCycle",
    "SimulatedMachine",
    "default_policies",
    "replay",
    "replay_table",
    "summarise",
]
