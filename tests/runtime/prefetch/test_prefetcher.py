"""What is fetched early while decoding, and that it changes no token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from eager_prefetch import fetch_all_guesses
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_model, tiny_prompt

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.prefetch import Prefetcher


def decode(folder, *, policy="ar", prefetch=True, tokens=20, slots=3, **options):
    """Return a decode's text, report and counters."""
    model = load_offloaded(folder, expert_cache=slots, dtype="float32", **options)
    with offload_of(model) as offload:
        spec = SpecFit(
            None if policy == "ar" else f"lm:{folder}", policy=policy, prefetch=prefetch
        )
        text = model.generate(
            tiny_prompt(), max_new_tokens=tokens, do_sample=False, custom_generate=spec
        )
        moved = offload.store.counters().bytes
        return SimpleNamespace(
            text=text.tolist(),
            report=spec.report,
            counters=offload.cache.counters(),
            record=int(offload.store.moved_bytes[0]),
            moved=moved,
        )


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_text_of_every_family_is_that_of_stock(model_type, tmp_path, monkeypatch) -> None:
    fetch_all_guesses(monkeypatch)
    folder = tiny_checkpoint(model_type, tmp_path)
    stock = tiny_model(model_type).generate(tiny_prompt(), max_new_tokens=20, do_sample=False)
    done = {policy: decode(folder, policy=policy) for policy in ("eagle-8", "ar")}
    assert [one.text for one in done.values()] == [stock.tolist()] * 2
    assert done["ar"].report.totals.prefetched > 0


@pytest.mark.parametrize(
    "options",
    [
        {"store": "disk"},
        {"store": "disk", "link_bandwidth": 2e7},
        {"store": "ram"},
        {"store": "ram", "link_bandwidth": 2e7},
    ],
    ids=str,
)
def test_what_is_counted_is_what_moved(options, tmp_path, monkeypatch) -> None:
    fetch_all_guesses(monkeypatch)
    folder = tiny_checkpoint("qwen3_moe", tmp_path)
    done = decode(folder, policy="chain-2", **options)
    counters, totals = done.counters, done.report.totals
    assert counters.prefetched > 0
    assert counters.hits + counters.misses == counters.lookups
    assert counters.bytes == (counters.misses + counters.prefetched) * done.record
    assert counters.bytes == done.moved
    unused = totals.prefetched - totals.prefetch_hits
    assert totals.wasted_prefetch_bytes == unused * done.record
    assert totals.hidden_seconds >= 0.0


def test_nothing_is_fetched_early_if_it_was_not_asked_for(tmp_path, monkeypatch) -> None:
    fetch_all_guesses(monkeypatch)
    done = decode(tiny_checkpoint("qwen3_moe", tmp_path), prefetch=False)
    assert done.counters.prefetched == 0


def test_where_transfers_cost_nothing_it_stops(tmp_path) -> None:
    """Copies within memory happen when they are asked for: nothing can hide behind compute."""
    folder = tiny_checkpoint("qwen3_moe", tmp_path)
    model = load_offloaded(folder, expert_cache=3, store="ram", dtype="float32")
    with offload_of(model):
        spec = SpecFit(None, policy="ar")
        model.generate(tiny_prompt(), max_new_tokens=90, do_sample=False, custom_generate=spec)
        assert not spec._prefetcher.judgement.pays


def test_guesses_are_compared_with_what_is_used(tmp_path) -> None:
    """A guess whose states are those that the router sees is right every time."""
    folder = tiny_checkpoint("qwen3_moe", tmp_path)
    model = load_offloaded(folder, expert_cache=2, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        prefetcher = Prefetcher(model, offload)
        truth = {}
        for layer, router in enumerate(prefetcher._foresight.routers):
            margins = router.margins
            router.margins = lambda logits, i=layer, m=margins: m(truth[i])
        with offload.recording() as record:
            model(tiny_prompt(4))
        for layer in range(offload.n_layers):
            rows = np.zeros((4, offload.n_experts), dtype=np.float32)
            np.put_along_axis(rows, record.experts()[:, layer].astype(np.int64), 1.0, axis=1)
            truth[layer] = rows
        used = np.stack([truth[i].any(axis=0) for i in range(offload.n_layers)])
        for _ in range(8):  # so many are looked at together
            with prefetcher.watching(fetch=True):
                model(tiny_prompt(4))
            prefetcher.learn(used)
        assert prefetcher.precision._seen.sum() > 0
        assert (prefetcher.precision._right == prefetcher.precision._seen).all()


def test_maps_learn_nothing_from_a_pass_that_was_not_watched(tmp_path) -> None:
    folder = tiny_checkpoint("qwen3_moe", tmp_path)
    model = load_offloaded(folder, expert_cache=3, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        prefetcher = Prefetcher(model, offload)
        used = np.ones((offload.n_layers, offload.n_experts), dtype=np.bool_)
        held = []
        for prefetcher.judgement.pays in (True, False, False):
            with prefetcher.watching(fetch=True):
                model(tiny_prompt(4))
            prefetcher.learn(used)
            held.append([learned._held for learned in prefetcher.maps])
        assert held == [[4] * offload.n_layers] * 3


def test_maps_learn_from_the_prompt(tmp_path) -> None:
    folder = tiny_checkpoint("qwen3_moe", tmp_path)
    model = load_offloaded(folder, expert_cache=3, dtype="float32")
    with offload_of(model) as offload, torch.no_grad():
        prefetcher = Prefetcher(model, offload)
        with prefetcher.watching(fetch=False):
            model(tiny_prompt(60))
        prefetcher.learn()
        assert all(learned.offset.any() for learned in prefetcher.maps)
        assert offload.cache.counters().prefetched == 0
