"""What the expert cache evicts and lets pass changes no bit of the output.

A product has the same rows and slots the same alignment whatever is cached, so that this holds to
the bit on every processor.
"""

from __future__ import annotations

import pytest
import torch
from eager_prefetch import fetch_all_guesses
from manual_store import LIVE_RULES

from specfit_runtime import SpecFit, load_offloaded, offload_of


@pytest.mark.parametrize(("policy", "slots"), [("chain-3", 2), ("eagle-16", 6)])
def test_logits_are_the_same_bits_with_every_policy(target, policy, slots, monkeypatch) -> None:
    fetch_all_guesses(monkeypatch)
    first = None
    for name in LIVE_RULES:
        model = load_offloaded(
            target.folder, expert_cache=slots, dtype="float32", cache_policy=name
        )
        with offload_of(model):
            spec = SpecFit(f"lm:{target.folder}", policy=policy)
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
