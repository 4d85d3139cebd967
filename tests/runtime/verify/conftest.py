"""The models that verification is tested on, each made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import MODEL_TYPES, tiny_model

#: Every family, and the two that have a sliding window in all layers when so configured.
KINDS = (*MODEL_TYPES, "mixtral-sliding", "qwen3_moe-sliding")
#: With every attention that can verify trees; gpt_oss has eager attention only.
ATTENTION = tuple(
    pytest.param(kind, attention, id=f"{kind}-{attention}")
    for kind in KINDS
    for attention in ("eager", "sdpa")
    if (kind, attention) != ("gpt_oss", "sdpa")
)

MakeModel = Callable[..., Any]
_made: dict[tuple[Any, ...], Any] = {}


@pytest.fixture(scope="session")
def model_of() -> MakeModel:
    """Return a stock tiny model of a kind, with the attention and dtype asked for."""

    def make(kind: str, attention: str = "eager", dtype: torch.dtype = torch.float32) -> Any:
        key = (kind, attention, dtype)
        if key not in _made:
            model = tiny_model(kind, dtype)
            model.set_attn_implementation(attention)
            if dtype == torch.float64:  # which the default implementation does not take on CPU
                model.set_experts_implementation("eager")
            _made[key] = model
        return _made[key]

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that names ``kind`` (and ``attention``) on each."""
    if {"kind", "attention"} <= set(metafunc.fixturenames):
        metafunc.parametrize(("kind", "attention"), ATTENTION)
    elif "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)
