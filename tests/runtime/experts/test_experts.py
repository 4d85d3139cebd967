"""Experts from a cache against the stock implementations."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import Interrupter
from manual_store import LIVE_RULES
from stock_experts import FakeOffload, StockExperts
from stock_models import load_stock
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_prompt

import specfit_runtime
import specfit_runtime.expert_cache
import specfit_runtime.expert_compute
import specfit_runtime.experts as experts_module
from specfit_runtime.errors import InvalidInputError, StoreError
from specfit_runtime.expert_compute import Rows, compute_batch
from specfit_runtime.experts import (
    EXPERTS_IMPLEMENTATION,
    ExpertLayer,
    offloaded_experts_forward,
    register,
)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_made: dict[tuple[str, torch.dtype], StockExperts] = {}


def experts_of(model_type: str, dtype: torch.dtype) -> StockExperts:
    if (model_type, dtype) not in _made:
        _made[model_type, dtype] = StockExperts(model_type, dtype)
    return _made[model_type, dtype]


# ---- equality with stock: to the bit, since both get the same rows, at the same places of the same
# ---- tensors, and all weights lie at multiples of 64 bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_bitwise_equal_to_stock(model_type: str, dtype: str) -> None:
    """Any number of slots, any order of arrival, cold and warm, few tokens and many."""
    experts = experts_of(model_type, DTYPES[dtype])
    for slots in range(1, experts.n_experts + 1):
        offload, _ = experts.behind_a_cache(slots, scratch=1 + slots % 3, seed=slots)
        for seed, n_tokens in enumerate((1, 2, 17, 1, 40)):
            inputs = experts.inputs(n_tokens, seed=seed)
            expected = experts.stock(*inputs)
            found = experts.offloaded(offload, *inputs)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


@given(
    model_type=st.sampled_from(MODEL_TYPES),
    dtype=st.sampled_from(sorted(DTYPES)),
    slots=st.integers(1, 8),
    scratch=st.integers(1, 8),
    seed=st.integers(0, 1000),
    top_k=st.integers(1, 8),
    passes=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    policy=st.sampled_from(LIVE_RULES),
)
@settings(max_examples=60)
def test_bitwise_equal_whatever_the_history(
    model_type: str,
    dtype: str,
    slots: int,
    scratch: int,
    seed: int,
    top_k: int,
    passes: list[int],
    policy: str,
) -> None:
    experts = experts_of(model_type, DTYPES[dtype])
    offload, store = experts.behind_a_cache(slots, scratch=scratch, seed=seed, policy=policy)
    for n, n_tokens in enumerate(passes):
        inputs = experts.inputs(n_tokens, seed=seed + n, top_k=top_k)
        offload.cache.begin_pass()
        offload.cache.prefetch(0, [seed % 8, (seed + n) % 8])
        assert torch.equal(experts.offloaded(offload, *inputs), experts.stock(*inputs))
    counters = offload.cache.counters()
    assert counters.bytes == store.counters().bytes


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_router_weights_of_another_type(model_type: str) -> None:
    """Some routers give float32 weights to a bfloat16 model; stock then sums in float32."""
    experts = experts_of(model_type, torch.bfloat16)
    offload, _ = experts.behind_a_cache(3)
    inputs = experts.inputs(9, weights=torch.float32)
    found = experts.offloaded(offload, *inputs)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, experts.stock(*inputs))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_float64_against_eager(model_type: str) -> None:
    """Stock grouped_mm knows no float64 on a CPU; eager differs in the order of its sums only."""
    experts = StockExperts(model_type, torch.float64)
    for slots in (1, 3, 8):
        offload, _ = experts.behind_a_cache(slots)
        inputs = experts.inputs(13)
        expected = experts.stock(*inputs, implementation="eager")
        found = experts.offloaded(offload, *inputs)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_bitwise_equal_in_any_number_of_threads(model_type: str, threads: int) -> None:
    """Elementwise work that is split among threads has its odd ends elsewhere for each batch.

    So has work on rows whose length is no multiple of a vector's, where a gate goes through all
    rows as one. Computed batch by batch without regard to that, these differ in the last bit.
    """
    changes = {"intermediate_size": 104, "moe_intermediate_size": 104}
    experts = StockExperts(model_type, torch.float32, **changes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for slots in (2, 8):
            offload, _ = experts.behind_a_cache(slots)
            for seed, n_tokens in enumerate((1, 3, 17, 50, 500, 501)):
                inputs = experts.inputs(n_tokens, seed=seed)
                assert torch.equal(experts.offloaded(offload, *inputs), experts.stock(*inputs))
    finally:
        torch.set_num_threads(before)


def test_sums_in_order_of_arrival_would_differ() -> None:
    """What the way of writing rows first and summing them once is for.

    The same batches in several orders: summed as they come they give several results, as the
    implementation does it there is one, that of stock.
    """
    experts = experts_of("qwen3_moe", torch.float32)
    inputs = experts.inputs(30, top_k=6)
    hidden, index, weights = inputs
    expected = experts.stock(*inputs)
    by_arrival, sums = [], []
    for seed in range(6):
        offload, store = experts.behind_a_cache(8, seed=seed)
        found = experts.offloaded(offload, *inputs)
        assert torch.equal(found, expected)

        offload, store = experts.behind_a_cache(8, seed=seed)
        rows = Rows(index, 8, hidden.device)
        tag = ExpertLayer(offload, 0)  # type: ignore[arg-type]
        total = torch.zeros_like(hidden)
        order: list[int] = []
        with torch.no_grad(), closing(offload.cache.use(0, rows.experts, rows.demand)) as batches:
            for batch in batches:
                parameters = tag.weights(batch.slab, experts.module)
                mine, computed = compute_batch(
                    experts.module, batch, parameters, rows, hidden, weights.reshape(-1)
                )
                total.index_add_(0, mine // 6, computed)
                order += batch.experts
                store.stir()
        by_arrival.append(tuple(order))
        sums.append(total)
    assert len(set(by_arrival)) > 1
    assert any(not torch.equal(total, sums[0]) for total in sums)
    torch.testing.assert_close(sums[0], expected)


def test_strided_hidden_states_and_other_index_types() -> None:
    experts = experts_of("mixtral", torch.float32)
    offload, _ = experts.behind_a_cache(3)
    hidden, index, weights = experts.inputs(9)
    expected = experts.stock(hidden, index, weights)
    strided = torch.stack([hidden, -hidden], dim=1)[:, 0]
    assert not strided.is_contiguous()
    for kind in (torch.int32, torch.int64):
        assert torch.equal(experts.offloaded(offload, strided, index.to(kind), weights), expected)
    turned = index.t().contiguous().t()
    assert torch.equal(experts.offloaded(offload, hidden, turned, weights), expected)


def test_autocast_as_stock() -> None:
    """Autocast would run mm in bfloat16, but does not know the grouped_mm of stock."""
    experts = experts_of("olmoe", torch.float32)
    offload, _ = experts.behind_a_cache(3)
    inputs = experts.inputs(9)
    plain = experts.stock(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = experts.stock(*inputs)
        found = experts.offloaded(offload, *inputs)
    assert torch.equal(found, expected)
    assert torch.equal(found, plain)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_no_tokens(model_type: str) -> None:
    experts = experts_of(model_type, torch.float32)
    offload, store = experts.behind_a_cache(3)
    inputs = experts.inputs(0)
    assert experts.offloaded(offload, *inputs).shape == experts.stock(*inputs).shape
    assert store.fetched == []
    ((layer, routing),) = offload.recorded
    assert layer == 0
    assert routing.shape == (0, 2)


def test_inference_mode() -> None:
    experts = experts_of("gpt_oss", torch.float32)
    offload, _ = experts.behind_a_cache(2)
    for n in range(3):
        inputs = experts.inputs(5, seed=n)
        with torch.inference_mode():
            inside = experts.offloaded(offload, *inputs)
        assert torch.equal(inside, experts.stock(*inputs))
        assert torch.equal(experts.offloaded(offload, *inputs), experts.stock(*inputs))


# ---- what is fetched and recorded


def test_each_expert_is_asked_for_once_per_pass() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    offload, store = experts.behind_a_cache(8)
    hidden, index, weights = experts.inputs(30)
    experts.offloaded(offload, hidden, index, weights)
    assert sorted(e for _, e in store.fetched) == sorted(set(index.flatten().tolist()))


def test_the_most_demanded_experts_get_the_free_slots() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    offload, _ = experts.behind_a_cache(2)
    index = torch.tensor([[3, 1], [3, 5], [5, 0], [3, 5], [6, 7]])
    experts.offloaded(offload, torch.randn(5, 48), index, torch.rand(5, 2))
    assert np.flatnonzero(offload.cache.resident[0]).tolist() == [3, 5]


def test_routing_is_recorded_before_the_experts_run() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    offload, store = experts.behind_a_cache(3)
    inputs = experts.inputs(5)
    store.on_fetch = lambda moment: seen.append(len(offload.recorded))
    seen: list[int] = []
    experts.offloaded(offload, *inputs)
    assert set(seen) == {1}
    ((layer, routing),) = offload.recorded
    assert layer == 0
    assert routing.dtype == np.int32
    assert np.array_equal(routing, inputs[1].numpy())


# ---- refusals


def test_registered_by_name() -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    register()
    assert ALL_EXPERTS_FUNCTIONS[EXPERTS_IMPLEMENTATION] is offloaded_experts_forward


def test_a_module_without_a_cache() -> None:
    experts = StockExperts("mixtral", torch.float32)
    experts.module.config._experts_implementation = EXPERTS_IMPLEMENTATION
    with pytest.raises(InvalidInputError, match=r"MixtralExperts has no expert cache.*load_off"):
        experts.module(*experts.inputs(2))


def test_gradients() -> None:
    experts = StockExperts("mixtral", torch.float32)
    offload, _ = experts.behind_a_cache(3)
    experts.offloaded(offload, *experts.inputs(2))
    hidden, index, weights = experts.inputs(2)
    for changed in (hidden, weights):
        changed.requires_grad_(True)
        with pytest.raises(InvalidInputError, match=r"cannot be trained.*torch\.no_grad"):
            experts.module(hidden, index, weights)
        with torch.no_grad():
            experts.module(hidden, index, weights)
        changed.requires_grad_(False)
    assert not experts.module(hidden, index, weights).requires_grad


def test_expert_parallelism() -> None:
    experts = StockExperts("mixtral", torch.float32)
    offload, _ = experts.behind_a_cache(3)
    experts.module._is_expert_parallel = True
    with pytest.raises(InvalidInputError, match="expert parallelism"):
        experts.offloaded(offload, *experts.inputs(2))


@pytest.mark.parametrize("bad", [8, 100])
def test_a_router_that_chooses_no_expert(bad: int) -> None:
    experts = experts_of("mixtral", torch.float32)
    offload, store = experts.behind_a_cache(3)
    hidden, index, weights = experts.inputs(2)
    index[1, 0] = bad
    with pytest.raises(InvalidInputError, match=f"chose expert {bad} of 8"):
        experts.offloaded(offload, hidden, index, weights)
    index[1, 0] = -1
    with pytest.raises(InvalidInputError, match="chose expert -1 of 8"):
        experts.offloaded(offload, hidden, index, weights)
    assert store.fetched == []


def test_copies_and_pickles_are_refused() -> None:
    experts = StockExperts("mixtral", torch.float32)
    offload, _ = experts.behind_a_cache(3)
    inputs = experts.inputs(2)
    expected = experts.offloaded(offload, *inputs)
    with pytest.raises(InvalidInputError, match=r"cannot be copied.*load_offloaded"):
        copy.deepcopy(experts.module)
    with pytest.raises(InvalidInputError, match=r"cannot be pickled.*load_offloaded"):
        pickle.dumps(experts.module)
    assert torch.equal(experts.offloaded(offload, *inputs), expected)


# ---- failures, interrupts, threads


def test_a_failed_fetch_is_raised_and_the_next_pass_is_right() -> None:
    experts = experts_of("glm4_moe", torch.float32)
    offload, store = experts.behind_a_cache(3)
    inputs = experts.inputs(9)
    for bad in range(8):
        store.failing.add((0, bad))
        if bad in inputs[1]:
            offload.cache.clear()
            with pytest.raises(StoreError, match=f"expert {bad}: made to fail"):
                experts.offloaded(offload, *inputs)
        store.failing.clear()
        assert torch.equal(experts.offloaded(offload, *inputs), experts.stock(*inputs))


def test_interrupted_anywhere() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    files = [
        Path(experts_module.__file__),
        *Path(specfit_runtime.expert_cache.__file__).parent.rglob("*.py"),
        *Path(specfit_runtime.expert_compute.__file__).parent.rglob("*.py"),
    ]
    interrupter = Interrupter(files)
    inputs = [experts.inputs(n, seed=n) for n in (1, 9, 2)]
    expected = [experts.stock(*one) for one in inputs]

    def passes(offload: FakeOffload) -> list[torch.Tensor]:
        return [experts.offloaded(offload, *one) for one in inputs]

    def offload() -> FakeOffload:
        return experts.behind_a_cache(4)[0]

    whole = offload()
    assert not interrupter.run(lambda: passes(whole))
    total = interrupter.count
    assert total > 100
    for at in np.random.default_rng(0).choice(np.arange(1, total + 1), size=80, replace=False):
        torn = offload()
        assert interrupter.run(lambda: passes(torn), int(at))  # noqa: B023
        for found, right in zip(passes(torn), expected, strict=True):
            assert torch.equal(found, right)


def test_threads_get_correct_results() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    inputs = [experts.inputs(5, seed=n) for n in range(12)]
    expected = [experts.stock(*one) for one in inputs]
    offload, _ = experts.behind_a_cache(3)
    experts.offloaded(offload, *inputs[0])  # leaves the module tagged and switched over

    def run(n: int) -> torch.Tensor:
        with torch.no_grad():  # which belongs to a thread
            output: torch.Tensor = experts.module(*inputs[n % 12])
        return output

    with ThreadPoolExecutor(3) as pool:
        for n, found in enumerate(pool.map(run, range(120))):
            assert torch.equal(found, expected[n % 12])


# ---- CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("store", ["pinned", "disk"])
def test_on_cuda(model_type: str, dtype: str, store: str, tmp_path: Path) -> None:
    """Kernels may tile groups differently there, so rounding is allowed for, and nothing else."""
    folder = tiny_checkpoint(model_type, tmp_path / "model", dtype=DTYPES[dtype])
    stock = load_stock(folder).to("cuda")
    stock.set_experts_implementation("grouped_mm")
    prompt = tiny_prompt(20).to("cuda")
    tolerance = {"fp32": 1e-3, "bf16": 0.25}[dtype]
    for slots in (1, 3, 8):
        model = specfit_runtime.load_offloaded(
            folder, expert_cache=slots, store=store, device="cuda"
        )
        with torch.no_grad():
            for n in (20, 1, 5):
                found, expected = model(prompt[:, :n]).logits, stock(prompt[:, :n]).logits
                torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance)
        specfit_runtime.offload_of(model).close()
