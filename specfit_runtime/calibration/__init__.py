"""What passes, draft levels and experts cost: measured beforehand, corrected while decoding."""

from __future__ import annotations

from .correction import CycleMeasurement, CycleTimeError, OnlineCorrection
from .measure import calibrate
from .profile import Machine, ModelShape, Quartiles, RuntimeProfile, load_profile

__all__ = [
    "CycleMeasurement",
    "CycleTimeError",
    "Machine",
    "ModelShape",
    "OnlineCorrection",
    "Quartiles",
    "RuntimeProfile",
    "calibrate",
    "load_profile",
]
