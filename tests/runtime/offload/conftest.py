from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from rounding import assert_no_near_ties
from stock_models import load_stock
from tiny_models import tiny_prompt


@pytest.fixture(scope="session")
def stock(tiny_folder: Any) -> Any:
    """Return a function that gives the stock model of a tiny checkpoint."""

    @cache
    def load(model_type: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        folder = tiny_folder(model_type, dtype=dtype)
        model = load_stock(folder, **options)
        assert model.config._experts_implementation == "grouped_mm"
        return model

    return load


@pytest.fixture(scope="session")
def stock_tokens(stock: Any) -> Any:
    """Return a function that gives the 64 tokens of stock greedy decoding, prompt included."""

    @cache
    def tokens(model_type: str) -> torch.Tensor:
        found = stock(model_type).generate(
            tiny_prompt(),
            max_new_tokens=64,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        assert_no_near_ties(torch.cat(found.logits))
        return found.sequences

    return tokens
