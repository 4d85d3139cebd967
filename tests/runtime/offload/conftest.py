from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="session")
def stock(tiny_folder: Any) -> Any:
    """Return a function that gives the stock model of a tiny checkpoint."""

    @cache
    def load(model_type: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        folder = tiny_folder(model_type, dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(folder, **options, trust_remote_code=False)
        assert model.config._experts_implementation == "grouped_mm"
        return model

    return load


@pytest.fixture(scope="session")
def stock_tokens(stock: Any) -> Any:
    """Return a function that gives the 64 tokens of stock greedy decoding, prompt included."""

    @cache
    def tokens(model_type: str) -> torch.Tensor:
        from tiny_models import tiny_prompt

        return stock(model_type).generate(tiny_prompt(), max_new_tokens=64, do_sample=False)

    return tokens
