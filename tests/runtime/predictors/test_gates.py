"""Experts chosen from router inputs, held against each family's own router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_models import MODEL_TYPES, tiny_model, tiny_prompt

from specfit_runtime.families import FAMILIES
from specfit_runtime.predictors._gates import ExpertRule, Gates

#: Families whose experts fall into groups also with groups that are smaller and of which two count.
CASES = [(name, {}) for name in MODEL_TYPES] + [
    (name, {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 3})
    for name in ("deepseek_v3", "glm4_moe")
]


class Heard:
    """What the routers and the experts of a model were given while it ran, by layer."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []
        self.chosen: list[torch.Tensor] = []


@contextmanager
def listening(model: Any) -> Iterator[Heard]:
    family, heard, handles = FAMILIES[model.config.model_type], Heard(), []
    for i in family.moe_layers(model.config):
        layer = model.get_submodule(f"model.layers.{i}")
        block = layer.get_submodule(family.experts_module)
        handles += [
            layer.mlp.register_forward_pre_hook(
                lambda module, args: heard.inputs.append(args[0].flatten(0, 1))
            ),
            block.register_forward_pre_hook(lambda module, args: heard.chosen.append(args[1])),
        ]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_the_same_experts_as_the_familys_own_router(family: str, changes: dict[str, int]) -> None:
    model = tiny_model(family, **changes)
    with listening(model) as heard, torch.no_grad():
        model(tiny_prompt(40))
    gates = Gates.of(model)
    inputs, true = torch.stack(heard.inputs, dim=1), torch.stack(heard.chosen, dim=1)
    logits = torch.einsum("nlh,leh->nle", inputs, gates.weight)
    found = gates.experts(logits)
    assert found.shape == true.shape == (40, gates.n_layers, model.config.num_experts_per_tok)
    assert torch.equal(found.sort().values, true.sort().values)
    # Not by chance: tokens differ, and so do layers.
    assert len(found.flatten(1).unique(dim=0)) > 10


@pytest.mark.parametrize("family", MODEL_TYPES)
def test_the_norm_is_the_one_that_the_router_reads(family: str) -> None:
    model = tiny_model(family)
    heard: list[torch.Tensor] = []
    spec = FAMILIES[family]
    last = spec.moe_layers(model.config)[-1]
    norm = model.get_submodule(f"model.layers.{last}.{spec.router_norm}")
    handle = norm.register_forward_pre_hook(lambda module, args: heard.append(args[0]))
    with listening(model) as inputs, torch.no_grad():
        model(tiny_prompt(5))
    handle.remove()
    gates = Gates.of(model)
    hidden = heard[0].flatten(0, 1)
    normed = torch.nn.functional.rms_norm(hidden, hidden.shape[-1:], eps=gates.eps) * gates.norm[-1]
    torch.testing.assert_close(normed, inputs.inputs[-1])


def test_groups_are_ranked_by_their_two_best() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.5, 1.0]])  # groups worth 9, 5 and 6.5
    assert ExpertRule(2, 3, 2).choose(scores).tolist() == [[0, 4]]
    scores = torch.tensor([[9.0, 0.0, 5.0, 5.0, 1.0, 0.0]])  # 9, 10, 1: the best expert is out
    assert ExpertRule(2, 3, 1).choose(scores).tolist() == [[2, 3]]
    assert ExpertRule(2).choose(scores).tolist() == [[0, 2]]


def test_the_model_is_left_as_it_is() -> None:
    model = tiny_model("gpt_oss")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gates = Gates.of(model)
    gates.weight.zero_()
    assert gates.bias is not None
    gates.bias.zero_()
    gates.norm.zero_()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
