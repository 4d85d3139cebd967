"""What passes, draft levels and experts cost: measured beforehand, corrected while decoding."""

from __future__ import annotations

from .correction import CycleMeasurement, CycleTimeError, OnlineCorrection
from .profile import Machine, ModelShape, Quartiles, RuntimeProfile, load_profile

__all__ = [
    "CycleMeasurement",
    "CycleTimeError",
    "Machine",
    "ModelShape",
    "OnlineCorrection",
    "Quartiles",
    "RuntimeProfile",
    "load_profile",
]
