"""The states at hand under the next layer's norm, for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_prompt

from specfit_runtime import load_offloaded, offload_of
from specfit_runtime.prefetch.foresight import Foresight


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_next_router_sees_the_states_under_its_own_norm(model_type, tmp_path) -> None:
    folder = tiny_checkpoint(model_type, tmp_path)
    model = load_offloaded(folder, expert_cache=8, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        family = offload.family
        layers = [model.model.layers[i] for i in family.moe_layers(model.config)]
        foresight = Foresight(model, offload)
        states = torch.randn(5, 48, generator=torch.Generator().manual_seed(1))
        norms = [layer.get_submodule(family.norm_module) for layer in layers]
        for i in range(1, len(layers)):
            found = foresight.logits(i, norms[i - 1](states))
            gate = layers[i].get_submodule(family.router_module)
            want = gate(norms[i](states))[0].float().view_as(found)
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


def test_a_map_is_taken_into_the_product(tmp_path) -> None:
    model = load_offloaded(tiny_checkpoint("gpt_oss", tmp_path), expert_cache=8, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        foresight, rng = Foresight(model, offload), np.random.default_rng(0)
        states = torch.randn(5, 48, generator=torch.Generator().manual_seed(1))
        matrix = rng.normal(size=(8, 8)).astype(np.float32)
        offset = rng.normal(size=8).astype(np.float32)
        for layer in (0, 1):
            early = foresight.logits(layer, states, fitted=False)
            foresight.fit(layer, matrix, offset)
            want = early.numpy() @ matrix + offset
            np.testing.assert_allclose(
                foresight.logits(layer, states).numpy(), want, rtol=1e-4, atol=1e-4
            )
            assert torch.equal(foresight.logits(layer, states, fitted=False), early)


def test_what_enters_the_first_layer_is_seen_in_watched_passes_alone(tmp_path) -> None:
    model = load_offloaded(tiny_checkpoint("qwen3_moe", tmp_path), expert_cache=8, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        foresight, seen = Foresight(model, offload), []
        with foresight.entry(seen.append):
            model(tiny_prompt())
            assert not seen
            with offload.prefetching(Unseeing()):
                model(tiny_prompt())
        model(tiny_prompt())
        (states,) = seen
        assert torch.equal(states, model.model.embed_tokens(tiny_prompt())[0])
        layer = model.model.layers[0]
        want = layer.mlp.gate(layer.post_attention_layernorm(states))[0]
        torch.testing.assert_close(foresight.logits(0, states), want)


class Unseeing:
    """A prefetcher that looks away."""

    def routing(self, layer, states, routing):
        return routing

    def meanwhile(self, layer, states, coming):
        pass
