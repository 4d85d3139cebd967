"""Hardware profiles: small named data files, and their reader."""

from __future__ import annotations

from .profile import PROFILES, HardwareProfile, load_profile

__all__ = ["PROFILES", "HardwareProfile", "load_profile"]
