"""The states at hand under the next layer's norm, for every family."""

from __future__ import annotations

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
        for i in range(len(layers) - 1):
            found = foresight.next_logits(i, norms[i](states))
            gate = layers[i + 1].get_submodule(family.router_module)
            want = gate(norms[i + 1](states))[0].float().view_as(found)
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
        assert foresight.next_logits(len(layers) - 1, states) is None


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
        (logits,) = seen
        layer = model.model.layers[0]
        states = layer.post_attention_layernorm(model.model.embed_tokens(tiny_prompt()))
        torch.testing.assert_close(logits, layer.mlp.gate(states[0])[0])


class Unseeing:
    """A prefetcher that looks away."""

    def routing(self, layer, states, routing):
        return routing

    def meanwhile(self, layer, states, coming):
        pass
