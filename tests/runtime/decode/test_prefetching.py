"""What is prefetched while decoding, and that it changes no token."""

from __future__ import annotations

import numpy as np
import pytest

from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.verify import TargetSession


@pytest.mark.parametrize("policy", ["ar", "chain-2", "specfit"])
def test_prefetching_is_done_for_every_policy_if_asked_for(target, policy) -> None:
    # Also for those that ask for no prediction themselves.
    texts, prefetched = [], []
    for prefetch in (True, False):
        model = load_offloaded(target.folder, expert_cache=3, dtype="float32")
        with offload_of(model) as offload:
            spec = SpecFit("prompt-lookup", policy=policy, prefetch=prefetch)
            texts.append(
                model.generate(
                    target.prompt, max_new_tokens=20, do_sample=False, custom_generate=spec
                ).tolist()
            )
            counters = offload.cache.counters()
            prefetched.append(counters.prefetched)
            assert counters.hits + counters.misses == counters.lookups
            record = int(offload.store.moved_bytes[0])
            assert counters.bytes == (counters.misses + counters.prefetched) * record
            assert counters.wasted_prefetch_bytes <= counters.prefetch_bytes
    assert texts[0] == texts[1]
    assert prefetched[0] > 0
    assert prefetched[1] == 0


class ByToken(RoutingPredictor):
    """Predicts by a formula, so that a test knows what was predicted for which token."""

    name = "by-token"

    def start(self, n_layers, n_experts, top_k):
        self.shape = n_layers, n_experts, top_k

    def predict(self, nodes):
        n_layers, n_experts, _ = self.shape
        layer = np.arange(n_layers)[:, None]
        first = np.asarray(nodes.token)[:, None, None] * 3 + layer
        return np.concatenate([first, first + 1], axis=2).astype(np.int32) % n_experts

    def observe(self, tokens, experts):
        pass


@pytest.mark.parametrize("policy", ["ar", "chain-2", "eagle-8"])
@pytest.mark.parametrize("slots", [3, 8])
def test_exactly_the_chosen_nodes_predicted_misses_are_prefetched(
    target, policy, slots, monkeypatch
) -> None:
    model = load_offloaded(target.folder, expert_cache=slots, dtype="float32")
    with offload_of(model) as offload:
        cache, predictor = offload.cache, ByToken()
        calls, moments = [], []
        prefetch, fetch, verify = cache.prefetch, offload.store.fetch, TargetSession.verify

        def noting_prefetch(layer, experts):
            before = set(np.flatnonzero(cache.resident[layer]).tolist())
            fetched = len(moments)
            prefetch(layer, experts)
            calls.append((layer, set(experts), before, moments[fetched:]))

        def noting_fetch(layer, expert, *rest):
            moments.append((layer, expert))
            return fetch(layer, expert, *rest)

        def checked_verify(session, tokens, parent):
            nodes = DraftNodes(np.array(tokens), np.array(parent), np.zeros(len(tokens)))
            wanted = predictor.predict(nodes)
            assert [layer for layer, *_ in calls] == list(range(offload.n_layers))
            for layer, asked, before, brought in calls:
                assert asked == set(wanted[:, layer].ravel().tolist())
                missing = asked - before
                assert {at for at, _ in brought} <= {layer}
                experts = {expert for _, expert in brought}
                assert experts <= missing
                # What finds no slot beside the rest of the prediction is dropped, and no more.
                assert len(experts) == min(len(missing), slots - len(asked & before))
            calls.clear()
            passes.append(len(tokens))
            return verify(session, tokens, parent)

        passes = []
        monkeypatch.setattr(cache, "prefetch", noting_prefetch)
        monkeypatch.setattr(offload.store, "fetch", noting_fetch)
        monkeypatch.setattr(TargetSession, "verify", checked_verify)
        drafter = None if policy == "ar" else f"lm:{target.folder}"
        spec = SpecFit(drafter, policy=policy, predictor=predictor, prefetch=True)
        model.generate(target.prompt, max_new_tokens=16, do_sample=False, custom_generate=spec)
        totals = spec.report.totals
        assert sum(passes) == totals.verified
        assert totals.prefetched > 0
        # What was fetched for nothing is counted, in the cycle that it was fetched for.
        unused = totals.prefetched - totals.prefetch_hits
        assert totals.wasted_prefetch_bytes == unused * int(offload.store.moved_bytes[0])
        if policy == "ar":
            assert unused > 0
