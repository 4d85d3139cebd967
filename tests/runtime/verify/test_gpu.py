"""Trees on a CUDA device: the same tokens as stock generation there."""

from __future__ import annotations

import pytest
import torch
from tiny_models import MODEL_TYPES, tiny_model, tiny_prompt
from tree_decoding import TreeDecoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("model_type", [*MODEL_TYPES, "mixtral-sliding"])
def test_trees_give_what_stock_generate_gives(model_type, do_sample):
    model = tiny_model(model_type).to("cuda")
    # Else stock generation switches the implementation after the prompt.
    model.set_experts_implementation("batched_mm")
    prompt = tiny_prompt(9).to("cuda")

    def generate(**more):
        torch.manual_seed(1)
        return model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            pad_token_id=0,
            do_sample=do_sample,
            max_new_tokens=32,
            **more,
        )[0].tolist()

    expected = generate()
    decoder = TreeDecoder(expected)
    assert generate(custom_generate=decoder) == expected
    assert decoder.passes < 28
