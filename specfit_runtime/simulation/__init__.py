"""Recorded decoding played again through the runtime's own policies, on a simulated machine."""

from __future__ import annotations

from .simulate import simulate
from .simulated_decode import Machine, SimulatedCycle, SimulatedDecode

__all__ = ["Machine", "SimulatedCycle", "SimulatedDecode", "simulate"]
