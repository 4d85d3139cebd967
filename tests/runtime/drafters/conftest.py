"""The tiny target that the drafters' tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def target():
    torch = pytest.importorskip("torch", reason="torch is missing: pip install 'specfit[runtime]'")
    torch.set_num_threads(1)
    from tiny_models import tiny_model

    return tiny_model("qwen3_moe")
