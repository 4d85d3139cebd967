"""Fixtures of the demo model's tests: the recipe's package and what it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def recipe() -> Iterator[None]:
    """Make ``tools.demo_model`` importable, and skip where it or its packages are absent."""
    if not (ROOT / "tools" / "demo_model").is_dir():
        pytest.skip("the recipe (folder 'tools') is only in the source repository")
    for package in ("torch", "transformers", "tokenizers", "safetensors"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install 'specfit[runtime]'")
    import torch

    torch.set_num_threads(2)
    sys.path.insert(0, str(ROOT))
    yield
    sys.path.remove(str(ROOT))
