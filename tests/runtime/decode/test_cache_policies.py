"""What the expert cache evicts and lets pass changes no bit of the output.

A product has the same rows and slots the same alignment whatever is cached, so that this holds to
the bit on every processor.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specfit_opt.path_weights import PathWeights
from specfit_opt.replay.caches.admit import LEAST_WEIGHT
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.expert_cache import EVICTION_POLICIES, ExpertCache


@pytest.mark.parametrize(("policy", "slots"), [("chain-3", 2), ("eagle-16", 6)])
def test_logits_are_the_same_bits_with_every_policy(target, policy, slots) -> None:
    first = None
    for name in EVICTION_POLICIES:
        model = load_offloaded(
            target.folder, expert_cache=slots, dtype="float32", cache_policy=name
        )
        with offload_of(model):
            spec = SpecFit(f"lm:{target.folder}", policy=policy, prefetch=True)
            found = model.generate(
                target.prompt,
                max_new_tokens=16,
                do_sample=False,
                custom_generate=spec,
                return_dict_in_generate=True,
                output_logits=True,
            )
            assert spec.report.cache_policy == name
            totals = spec.report.totals
            assert totals.hits + totals.misses == totals.lookups
        first = first or found
        assert torch.equal(found.sequences, first.sequences)
        for one, other in zip(found.logits, first.logits, strict=True):
            assert torch.equal(one, other)


def test_experts_are_weighed_by_their_true_routing(target, monkeypatch) -> None:
    """By the time that a layer's experts are asked for, their router has spoken."""
    told = []
    use = ExpertCache.use

    def noting(self, layer, experts, demand, weight=None):
        told.append((layer, experts, weight))
        return use(self, layer, experts, demand, weight)

    monkeypatch.setattr(ExpertCache, "use", noting)
    model = load_offloaded(target.folder, expert_cache=4, dtype="float32", cache_policy="admit")
    with offload_of(model) as offload:
        trees = []
        expecting = offload.expecting

        def noting_trees(paths):
            trees.append((paths, len(told)))
            return expecting(paths)

        monkeypatch.setattr(offload, "expecting", noting_trees)
        spec = SpecFit(f"lm:{target.folder}", policy="eagle-16")
        with offload.recording() as record:
            model.generate(target.prompt, max_new_tokens=12, do_sample=False, custom_generate=spec)
        assert all(weight is None for _, _, weight in told[: offload.n_layers])  # the prompt
        routing = record.experts()[target.prompt.shape[1] :]
        for (paths, at), cycle in zip(trees, spec.report.cycles, strict=True):
            experts, routing = routing[: cycle.verified], routing[cycle.verified :]
            wanted = paths.of(experts, offload.n_experts)
            assert isinstance(paths, PathWeights)
            for layer, (told_layer, asked, weight) in enumerate(
                told[at : at + offload.n_layers]
            ):
                assert told_layer == layer
                assert weight == wanted[layer, asked].tolist()
                assert min(weight) > 0.0
        assert not len(routing)
        # Within the passes that fit, some experts were too unlikely.
        assert any(weight and min(weight) < LEAST_WEIGHT for _, _, weight in told)
        assert offload.weights(np.zeros((1, 2), dtype=np.int32), [0]) is None
