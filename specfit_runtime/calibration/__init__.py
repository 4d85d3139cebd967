"""What passes, draft levels and experts cost: measured on the machine at hand."""

from __future__ import annotations

from .measure import calibrate
from .offload_setup import OffloadSetup
from .quartiles import Quartiles
from .runtime_profile import RuntimeProfile, load_runtime_profile

__all__ = [
    "OffloadSetup",
    "Quartiles",
    "RuntimeProfile",
    "calibrate",
    "load_runtime_profile",
]
