"""What passes, draft levels and experts cost: measured beforehand, corrected while decoding."""

from __future__ import annotations

from .measure import calibrate
from .profile import Machine, ModelShape, Quartiles, RuntimeProfile, load_profile

__all__ = [
    "Machine",
    "ModelShape",
    "Quartiles",
    "RuntimeProfile",
    "calibrate",
    "load_profile",
]
