"""Drafting on a GPU gives the trees of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafter_cases import CASES, Text, build, draft
from tiny_models import tiny_model, tiny_prompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", CASES)
def test_trees_are_those_of_the_cpu(case, target, tmp_path):
    trees = []
    for device in ("cpu", "cuda"):
        model = tiny_model("qwen3_moe").to(device)
        drafter = build(case, tmp_path / device, model)
        text = Text.of(target, drafter, tiny_prompt(40)[0].tolist() * 2)
        moved = Text(text.tokens, None if text.features is None else text.features.to(device))
        moved.start(drafter, 70)
        draft(drafter, 2)
        moved.commit(drafter, 70, 80)
        trees.append(draft(drafter, 4))
    for one, other in zip(*trees, strict=True):
        np.testing.assert_array_equal(one.parent, other.parent)
        np.testing.assert_array_equal(one.token, other.token)
        np.testing.assert_allclose(one.prob, other.prob, atol=1e-4)
