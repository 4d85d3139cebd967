"""Hardware profiles: small named data files, and their reader."""

from __future__ import annotations

from .policy_time import PolicyTime, time_of
from .profile import PROFILES, HardwareProfile, load_profile

__all__ = ["PROFILES", "HardwareProfile", "PolicyTime", "load_profile", "time_of"]
