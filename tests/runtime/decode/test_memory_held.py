"""What a decode returns holds its own memory and no more."""

from __future__ import annotations

import pytest
import torch

from specfit_runtime import SpecFit
from specfit_runtime.tracing import record_trace


def held(tensors) -> tuple[int, int]:
    """Return the bytes that tensors keep alive, and those that they show."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()), sum(t.nbytes for t in tensors)


def test_results_hold_what_they_show(model, target):
    spec = SpecFit(f"lm:{target.folder}", policy="eagle-60")
    result = model.generate(
        target.prompt, max_new_tokens=12, do_sample=False, custom_generate=spec,
        return_dict_in_generate=True, output_logits=True, output_scores=True,
    )
    cache = getattr(result, "cache", None) or result.past_key_values
    states = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    for tensors in (result.logits, result.scores, [result.sequences], states):
        kept, shown = held(tensors)
        assert kept == shown


@pytest.mark.parametrize("name", ["token", "path_prob", "experts", "states"])
def test_a_trace_holds_what_it_shows(model, target, name):
    spec = SpecFit(f"lm:{target.folder}", policy="chain-2")
    trace = record_trace(
        model, spec._drafter, [target.prompt[0].tolist()], max_new_tokens=3, states=True
    )
    array = getattr(trace, name)
    base = array if array.base is None else array.base
    assert base.nbytes == array.nbytes


def test_a_drafter_keeps_no_pass_of_the_target(model, target):
    """Between texts, nothing of the last tree's logits or features is referred to."""
    import gc

    spec = SpecFit(f"lm:{target.folder}", policy="eagle-60")
    model.generate(target.prompt, max_new_tokens=12, do_sample=False, custom_generate=spec)
    gc.collect()
    vocabulary = model.config.vocab_size
    wide = [
        t for t in gc.get_objects()
        if type(t) is torch.Tensor and t.ndim == 2 and t.shape == (60, vocabulary)
    ]
    assert not wide
