"""What is in memory after loading: the rest of the model, the slots, and nothing else."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny_models import MODEL_TYPES, tiny_prompt

from specfit_runtime import StoreError, load_offloaded, offload_of
from specfit_runtime.stores import open_store

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="reads /proc, which only Linux has"
)


def our_threads() -> int:
    return sum(thread.name.startswith("specfit") for thread in threading.enumerate())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_only_experts_are_on_meta(tiny_folder: Any, stock: Any, model_type: str) -> None:
    # The bug: offloading was off, and nobody was told.
    model = load_offloaded(tiny_folder(model_type), expert_cache=2)
    offload = offload_of(model)
    reference = stock(model_type)
    on_meta = {n for n, p in model.named_parameters() if p.is_meta}
    assert on_meta == {n for n, _ in reference.named_parameters() if ".experts." in n}
    assert len(on_meta) == offload.n_layers * len(offload.family.pieces)
    elements = sum(p.numel() for p in model.parameters() if p.is_meta)
    record = sum(piece.n_elements for piece in offload.index.layouts[0].pieces)
    assert elements == offload.n_layers * offload.n_experts * record
    wanted = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name not in on_meta:
            assert torch.equal(tensor, wanted[name]), name
            assert tensor.dtype == wanted[name].dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotary_frequencies_are_not_rounded(tiny_folder: Any, dtype: torch.dtype) -> None:
    exact = dict(load_offloaded(tiny_folder("gpt_oss")).named_buffers())
    buffers = dict(load_offloaded(tiny_folder("gpt_oss"), dtype=dtype).named_buffers())
    assert set(buffers) == set(exact)
    for name in exact:
        assert buffers[name].dtype == torch.float32
        assert torch.equal(buffers[name], exact[name])


def test_other_threads_make_real_modules_meanwhile(
    tiny_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    make = AutoModelForCausalLM.from_config
    made = []

    def and_another(*args: Any, **options: Any) -> Any:
        def other() -> None:
            made.append(torch.nn.Linear(2, 3))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return make(*args, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", and_another)
    load_offloaded(tiny_folder("mixtral"))
    assert not made[0].weight.is_meta
    assert not torch.nn.Linear(2, 3).weight.is_meta  # nor later


def test_slots_hold_what_was_asked_for(tiny_folder: Any) -> None:
    folder = tiny_folder("qwen3_moe")
    for size, slots in ((1, 1), (0.5, 4), ("100%", 8), ("3", 3)):
        offload = offload_of(load_offloaded(folder, expert_cache=size, scratch=2))
        assert tuple(offload.cache.slots) == (slots,) * 3
        n_bytes = int(offload.index.record_bytes[0])
        assert offload.cache.n_bytes == (3 * slots + 2) * n_bytes
    budget = 20 * n_bytes
    offload = offload_of(load_offloaded(folder, expert_cache=f"{budget}B", scratch=2))
    assert sum(offload.cache.slots) == 18
    assert offload.cache.n_bytes == budget


@needs_proc
def test_no_file_stays_mapped(tiny_folder: Any) -> None:
    folder = tiny_folder("mixtral", shards=2)

    def mapped() -> bool:
        return str(folder) in Path("/proc/self/maps").read_text()

    gc.collect()
    assert not mapped()
    model = load_offloaded(folder, expert_cache=2)
    model(tiny_prompt())
    assert not mapped()
    # What the test looks at does show a mapping where there is one.
    with safe_open(next(folder.glob("*.safetensors")), "pt") as file:
        held = file.get_tensor(next(iter(file.keys())))
        assert mapped()
        del held


@needs_proc
@pytest.mark.parametrize("store", ["disk", "ram"])
def test_closing_leaves_no_files_and_threads(tiny_folder: Any, store: str) -> None:
    folder = tiny_folder("mixtral", shards=2)

    def held() -> tuple[int, int]:
        files = [Path(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        here = [f for f in files if f.exists() and str(folder) in str(f.resolve())]
        return len(here), our_threads()

    gc.collect()
    before = held()
    model = load_offloaded(folder, expert_cache=2, store=store)
    model(tiny_prompt())
    if store == "disk":
        assert all(now > then for now, then in zip(held(), before, strict=True))
    offload_of(model).close()
    assert held() == before


def test_a_dropped_model_is_closed(tiny_folder: Any) -> None:
    gc.collect()
    before = our_threads()
    model = load_offloaded(tiny_folder("mixtral"), expert_cache=2)
    model(tiny_prompt())
    offload = weakref.ref(offload_of(model))
    assert our_threads() > before
    del model
    gc.collect()
    assert offload() is None
    assert our_threads() == before


def test_the_store_is_closed_when_loading_fails_late(
    tiny_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_and_keep(*args: Any, **options: Any) -> Any:
        opened.append(open_store(*args, **options))
        return opened[0]

    def refuse(*args: Any, **options: Any) -> None:
        raise MemoryError("no room for the slots")

    monkeypatch.setattr("specfit_runtime.load.open_store", open_and_keep)
    monkeypatch.setattr("specfit_runtime.load.ExpertCache", refuse)
    with pytest.raises(MemoryError, match="no room"):
        load_offloaded(tiny_folder("mixtral"))
    (store,) = opened
    with pytest.raises(StoreError, match="closed"):
        store.fetch(0, 0, torch.empty(store.index.layouts[0].n_elements))
