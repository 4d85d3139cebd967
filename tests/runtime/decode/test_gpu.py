"""Decoding on a CUDA device: the tokens of stock generation there, from every store."""

from __future__ import annotations

import warnings
from itertools import product

import pytest
import torch
from eager_prefetch import fetch_all_guesses
from tiny_drafters import tiny_eagle3
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

from specfit_opt.policies import POLICIES
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.stores import STORES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NEW_TOKENS = 32
POLICY_NAMES = [kind.default_name for kind in POLICIES.values()]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory):
    """Return what makes the target's folder and the stock output of a family, once each."""
    known = {}

    def of(family: str):
        if family not in known:
            folder = tiny_checkpoint(family, tmp_path_factory.mktemp(family), shards=2)
            known[family] = folder, generate(tiny_model(family).to("cuda"))
        return known[family]

    return of


def generate(model, **more) -> list[int]:
    prompt = tiny_prompt().to("cuda")
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        pad_token_id=0,
        max_new_tokens=NEW_TOKENS,
        **{"do_sample": False, **more},
    )
    return out[0].tolist()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("family", MODEL_TYPES)
@pytest.mark.parametrize("cache", [1, 0.4, 1.0])
def test_output_is_that_of_stock_with_every_policy(places, family, store, cache) -> None:
    folder, stock = places(family)
    model = load_offloaded(
        folder, expert_cache=cache, store=store, device="cuda", dtype="float32"
    )
    with offload_of(model):
        for policy in POLICY_NAMES:
            spec = SpecFit(f"lm:{folder}", policy=policy)
            assert generate(model, custom_generate=spec) == stock, policy


@pytest.mark.parametrize(("store", "prefetch"), list(product(STORES, [True, False])))
def test_prefetching_changes_no_token(places, tmp_path, monkeypatch, store, prefetch) -> None:
    fetch_all_guesses(monkeypatch)
    # With next to no slots, so that what is prefetched, used and evicted meet in every slot.
    folder, stock = places("qwen3_moe")
    head = tiny_eagle3(tmp_path / "head", tiny_config("qwen3_moe"))
    model = load_offloaded(folder, expert_cache=2, store=store, device="cuda", dtype="float32")
    with offload_of(model) as offload, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="drafter .* the target accepted")
        spec = SpecFit(f"eagle3:{head}", policy="eagle-16", prefetch=prefetch)
        for _ in range(4):
            assert generate(model, custom_generate=spec) == stock
        counters = offload.cache.counters()
        assert counters.hits + counters.misses == counters.lookups
        moved = counters.misses + counters.prefetched
        assert counters.bytes == moved * int(offload.store.moved_bytes[0])
        assert bool(counters.prefetched) == prefetch


def test_sampled_output_is_that_of_stock(places) -> None:
    folder, _ = places("qwen3_moe")
    sampled = {"do_sample": True, "temperature": 0.8, "top_p": 0.9}
    model = tiny_model("qwen3_moe").to("cuda")
    torch.manual_seed(5)
    stock = generate(model, **sampled)
    model = load_offloaded(
        folder, expert_cache=0.5, store="pinned", device="cuda", dtype="float32"
    )
    with offload_of(model):
        spec = SpecFit(f"lm:{folder}", policy="eagle-16")
        torch.manual_seed(5)
        assert generate(model, custom_generate=spec, **sampled) == stock


def test_a_streamer_gets_tokens_on_the_host(places) -> None:
    folder, stock = places("qwen3_moe")
    got: list[int] = []

    class Streamer:
        def put(self, value: torch.Tensor) -> None:
            assert value.device.type == "cpu"
            got.extend(value.reshape(-1).tolist())

        def end(self) -> None:
            got.append(-1)

    model = load_offloaded(folder, store="pinned", device="cuda", dtype="float32")
    with offload_of(model):
        spec = SpecFit("prompt-lookup", policy="eagle-16")
        generate(model, custom_generate=spec, streamer=Streamer())
    assert got == [*stock, -1]


@pytest.mark.parametrize("store", STORES)
def test_memory_of_a_closed_model_can_be_used_at_once(places, store) -> None:
    # Whatever was on its way must not arrive in memory that others have by then.
    folder, _ = places("qwen3_moe")
    for _ in range(5):
        model = load_offloaded(
            folder, expert_cache=1.0, store=store, device="cuda", dtype="float32"
        )
        offload = offload_of(model)
        for layer in range(offload.n_layers):
            offload.cache.prefetch(layer, range(offload.n_experts))
        size = offload.cache.n_bytes
        offload.close()
        del model, offload
        zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        assert not bool(zeros.any())
