"""Hardware profiles: small named data files, and their reader."""

from __future__ import annotations

from .profile import HardwareProfile, list_profiles, load_profile

__all__ = ["HardwareProfile", "list_profiles", "load_profile"]
