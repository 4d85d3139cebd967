"""Speculative decoding of offloaded mixture-of-experts models, with a small model to try it on.

Importing the package needs no torch; what runs a model imports it when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .demo_files import demo_drafter, demo_model, demo_predictor
from .errors import BusyError, CheckpointError, DrafterError, StoreError

if TYPE_CHECKING:
    from .calibration import RuntimeProfile, calibrate, load_runtime_profile
    from .load import load_offloaded
    from .offload import Offload, offload_of
    from .report import CycleRecord, DecodeReport
    from .speculate import SpecFit

#: Where the names live whose modules need torch.
_LAZY = {
    "Offload": "offload",
    "load_offloaded": "load",
    "offload_of": "offload",
    "SpecFit": "speculate",
    "DecodeReport": "report",
    "CycleRecord": "report",
    "RuntimeProfile": "calibration",
    "calibrate": "calibration",
    "load_runtime_profile": "calibration",
}

__all__ = [
    "BusyError",
    "CheckpointError",
    "CycleRecord",
    "DecodeReport",
    "DrafterError",
    "Offload",
    "RuntimeProfile",
    "SpecFit",
    "StoreError",
    "calibrate",
    "demo_drafter",
    "demo_model",
    "demo_predictor",
    "load_offloaded",
    "load_runtime_profile",
    "offload_of",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._extras import require_runtime

    require_runtime()
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
