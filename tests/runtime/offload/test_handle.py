"""The handle of an offloaded model, and what may be done to such a model."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounding import assert_same_to_rounding
from stock_routing import StockRouting
from tiny_models import MODEL_TYPES, tiny_model, tiny_prompt

from specfit_runtime import BusyError, Offload, load_offloaded, offload_of
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.exclusive import exclusively
from specfit_runtime.experts import EXPERTS_IMPLEMENTATION
from specfit_runtime.families import FAMILIES
from specfit_runtime.offload import BUSY


@pytest.fixture
def model(tiny_folder: Any) -> Any:
    model = load_offloaded(tiny_folder("qwen3_moe"), expert_cache=3)
    yield model
    offload_of(model).close()


def test_what_the_handle_says(model: Any) -> None:
    offload = offload_of(model)
    assert isinstance(offload, Offload)
    assert offload.family is FAMILIES["qwen3_moe"]
    assert (offload.n_layers, offload.n_experts, offload.top_k) == (3, 8, 2)
    assert offload.device == torch.device("cpu")
    assert offload.dtype == torch.float32
    assert offload.index is offload.store.index
    assert offload.store.name == "disk"
    text = repr(offload)
    for part in ("qwen3_moe", "3 layers x 8 experts, top-2", "disk", "3 slots per layer (lfu)"):
        assert part in text
    assert "float32 on cpu" in text
    assert "closed" not in text


def test_an_emulated_link_shows(tiny_folder: Any) -> None:
    model = load_offloaded(tiny_folder("qwen3_moe"), link_bandwidth=2e9)
    assert "emulated link of 2 GB/s" in repr(offload_of(model))


@pytest.mark.parametrize("other", [None, 3, torch.nn.Linear(1, 1)])
def test_other_models_have_no_handle(other: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"load the model with.*load_offloaded"):
        offload_of(other)


# ---- recording


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_recorded_routing_is_the_stock_model_s(
    tiny_folder: Any, stock: Any, model_type: str
) -> None:
    model = load_offloaded(tiny_folder(model_type), expert_cache=1)
    offload, reference = offload_of(model), stock(model_type)
    listener = StockRouting(reference)
    with offload.recording() as record, listener.recording() as heard:
        for m in (model, reference):
            m.generate(tiny_prompt(), max_new_tokens=5, do_sample=False)
    experts = record.experts()
    assert experts.dtype == np.int32
    assert experts.shape == (7 + 4, offload.n_layers, 2)
    assert np.array_equal(experts, heard.experts())


def test_recordings_nest_and_end(model: Any) -> None:
    offload = offload_of(model)
    with offload.recording() as outer:
        model(tiny_prompt(3))
        with offload.recording() as inner:
            model(tiny_prompt(2))
        model(tiny_prompt(1))
    model(tiny_prompt(4))
    assert len(outer.experts()) == 6
    assert np.array_equal(inner.experts(), outer.experts()[3:5])


def test_a_record_of_nothing_is_empty(model: Any) -> None:
    with offload_of(model).recording() as record:
        pass
    assert record.experts().shape == (0, 3, 2)


def test_a_record_of_half_a_pass_is_refused(model: Any) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model.model.layers[2].register_forward_pre_hook(stop)
    with offload_of(model).recording() as record:
        with pytest.raises(KeyboardInterrupt):
            model(tiny_prompt(3))
        with pytest.raises(InvalidInputError, match="did not run to its end"):
            record.experts()
    handle.remove()


# ---- one at a time, and the end


def test_a_second_generation_is_refused_at_once(model: Any) -> None:
    parts = [(offload_of(model), BUSY)]
    errors = []

    def other() -> None:
        try:
            exclusively(parts, lambda: None)
        except BusyError as error:
            errors.append(str(error))

    def first() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(BusyError, match="decoding for another call"):
            exclusively(parts, lambda: None)

    def fail() -> None:
        raise ValueError("mine")

    exclusively(parts, first)
    assert len(errors) == 1
    with pytest.raises(ValueError, match="mine"):
        exclusively(parts, fail)
    other()
    assert len(errors) == 1


def test_plain_forward_passes_of_two_threads_are_correct(model: Any, stock: Any) -> None:
    prompts = [tiny_prompt(9, seed=s) for s in range(4)]
    want = [stock("qwen3_moe")(p).logits for p in prompts]
    got: list[Any] = [None] * 4

    def run(n: int) -> None:
        for _ in range(5):
            got[n] = model(prompts[n]).logits
            assert_same_to_rounding(got[n], want[n])

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for g, w in zip(got, want, strict=True):
        assert_same_to_rounding(g, w)


def test_a_closed_model_says_so(model: Any) -> None:
    offload = offload_of(model)
    with offload as same:
        assert same is offload
        model(tiny_prompt())
    assert offload.closed
    assert "closed" in repr(offload)
    offload.close()
    with pytest.raises(InvalidInputError, match="were closed; load it again"):
        model(tiny_prompt())
    assert offload.cache.counters().lookups > 0  # can still be read


# ---- what would break the model is refused, and leaves it whole


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.to("meta"),
        lambda m: m.model.layers[0].mlp.experts.bfloat16(),
        lambda m: torch.nn.ModuleList([m]).bfloat16(),
    ],
)
def test_conversions_are_refused(model: Any, stock: Any, convert: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be moved or converted.*load it again"):
        convert(model)
    assert_same_to_rounding(
        model(tiny_prompt()).logits, stock("qwen3_moe")(tiny_prompt()).logits
    )


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to("cpu"),
        lambda m: m.float(),
        lambda m: m.cpu(),
        lambda m: m.eval(),
        lambda m: m.to(device="cpu", dtype=torch.float32),
    ],
)
def test_conversions_that_change_nothing_pass(model: Any, stock: Any, convert: Any) -> None:
    assert convert(model) is model
    assert_same_to_rounding(
        model(tiny_prompt()).logits, stock("qwen3_moe")(tiny_prompt()).logits
    )


def test_copies_are_refused(model: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be copied.*load it a second time"):
        copy.deepcopy(model)
    with pytest.raises(InvalidInputError, match="cannot be copied"):
        copy.deepcopy(offload_of(model))


def test_pickles_are_refused(model: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be pickled.*pass on the checkpoint"):
        pickle.dumps(model)
    with pytest.raises(InvalidInputError, match="cannot be pickled"):
        pickle.dumps(offload_of(model))


def test_saving_is_refused_and_writes_nothing(model: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be saved.*unchanged, in"):
        model.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_switching_the_offload_off_is_noticed(model: Any, stock: Any) -> None:
    # Stock code over the meta parameters computes logits on meta without a word.
    model.set_experts_implementation("grouped_mm")
    with pytest.raises(InvalidInputError, match="was changed to 'grouped_mm'"):
        model(tiny_prompt())
    model.set_experts_implementation(EXPERTS_IMPLEMENTATION)
    assert_same_to_rounding(
        model(tiny_prompt()).logits, stock("qwen3_moe")(tiny_prompt()).logits
    )


def test_the_implementation_is_for_offloaded_models_only() -> None:
    other = tiny_model("qwen3_moe")
    other.set_experts_implementation(EXPERTS_IMPLEMENTATION)
    with pytest.raises(InvalidInputError, match="load_offloaded returned"):
        other(tiny_prompt())


def test_classes_stay_stock(model: Any) -> None:
    assert type(model).__module__.startswith("transformers.")
    before = {k: v for k, v in vars(type(model)).items() if callable(v)}
    experts = model.model.layers[0].mlp.experts
    assert type(experts).__module__.startswith("transformers.")
    assert "_apply" not in before
    assert all("forward" not in vars(module) for module in model.modules())
