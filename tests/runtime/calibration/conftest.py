from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from specfit_runtime import load_offloaded, offload_of


@pytest.fixture
def load(tiny_folder: Any) -> Iterator[Any]:
    """Return a function that loads a tiny model, offloaded, and closes it after the test."""
    with ExitStack() as stack:

        def opened(model_type: str = "qwen3_moe", **options: Any) -> Any:
            arguments = {"expert_cache": 8, "dtype": "float32", **options}
            model = load_offloaded(tiny_folder(model_type), **arguments)
            stack.enter_context(offload_of(model))
            return model

        yield opened
