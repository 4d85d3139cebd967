"""What is prefetched while decoding, and that it changes no token."""

from __future__ import annotations

import pytest

from specfit_runtime import SpecFit, load_offloaded, offload_of


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
