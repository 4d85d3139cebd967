"""Imports benchmark scripts, which are in the source repository and not installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def benchmark_script(name: str, patch: pytest.MonkeyPatch) -> Any:
    """Return the module ``benchmarks.name``; skip the test where there is none."""
    if not (ROOT / "benchmarks" / f"{name}.py").is_file():
        reason = "benchmarks/ is not here: the tests run outside the checkout"
        pytest.skip(reason, allow_module_level=True)
    patch.syspath_prepend(str(ROOT))
    return importlib.import_module(f"benchmarks.{name}")
