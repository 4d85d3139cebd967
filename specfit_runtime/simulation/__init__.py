"""Recorded decoding played again through the runtime's own policies, on a simulated machine."""

from __future__ import annotations

from .lookahead import Lookahead, Prospect
from .simulate import simulate
from .simulated_decode import Machine, SimulatedCycle, SimulatedDecode

__all__ = ["Lookahead", "Machine", "Prospect", "SimulatedCycle", "SimulatedDecode", "simulate"]
