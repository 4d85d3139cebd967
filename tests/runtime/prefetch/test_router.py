"""A router's margins against what the stock router chooses, for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import MODEL_TYPES, tiny_model

from specfit_runtime.families import family_for
from specfit_runtime.prefetch.router import Router


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("used_groups", [1, 2])
def test_the_experts_with_a_positive_margin_are_those_of_stock(model_type, used_groups) -> None:
    grouped = model_type in ("deepseek_v3", "glm4_moe")
    changes = {"topk_group": used_groups} if grouped else {}
    model = tiny_model(model_type, **changes)
    family = family_for(model.config)
    layer = model.model.layers[family.moe_layers(model.config)[-1]]
    gate = layer.get_submodule(family.router_module)
    router = Router(gate, 2, family.groups(model.config))
    states = torch.randn(50, 48, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, _, chosen = gate(states)
        ours = router.logits(states)
    torch.testing.assert_close(ours, logits.float().view_as(ours))
    margins = router.margins(ours.numpy())
    for row, experts in zip(margins, chosen.view(50, 2).tolist(), strict=True):
        assert sorted(np.flatnonzero(row > 0.0).tolist()) == sorted(experts)
        assert sorted(row)[-3] == 0.0


def test_where_every_token_uses_all_experts_all_margins_are_positive() -> None:
    gate = torch.nn.Linear(4, 3)
    margins = Router(gate, 3, (1, 1)).margins(np.zeros((2, 3), dtype=np.float32))
    assert (margins > 0.0).all()
