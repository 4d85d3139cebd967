"""Files: instances, traces, and models for other people's solvers."""

from __future__ import annotations

from .export import export
from .instance import load_instance, save_instance
from .trace import Trace, TraceCycle, load_trace, save_trace

__all__ = [
    "Trace",
    "TraceCycle",
    "export",
    "load_instance",
    "load_trace",
    "save_instance",
    "save_trace",
]
