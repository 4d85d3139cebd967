"""Calibrating an offloaded model: what the profile holds, and that nothing else changes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import getpass
import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_drafters import tiny_eagle3, tiny_lm
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

import specfit_runtime
from specfit_opt.control.correction import OnlineCorrection
from specfit_runtime import calibrate, demo_drafter, demo_model, load_offloaded, offload_of
from specfit_runtime.calibration import RuntimeProfile, load_runtime_profile, measure
from specfit_runtime.calibration.measure import calibrate_briefly
from specfit_runtime.drafters import PromptLookup, make_drafter
from specfit_runtime.errors import BusyError, InvalidInputError, StoreError
from specfit_runtime.exclusive import exclusively
from specfit_runtime.offload import BUSY

FEW = {"max_nodes": 4, "repeats": 2}


def check(profile: RuntimeProfile, model: Any) -> None:
    """Check what holds of every profile."""
    offload = offload_of(model)
    profile.check_fits(offload)
    assert 0.0 < profile.fixed_time + profile.node_time < math.inf
    assert min(profile.fixed_time, profile.node_time) >= 0.0
    assert len(profile.expert_time) == offload.n_layers
    assert all(0.0 < t < math.inf for t in profile.expert_time)
    assert profile.setup.moved_bytes == tuple(offload.store.moved_bytes.tolist())
    assert 0.0 <= profile.handling_share <= 1.0
    assert all(0.0 < t < math.inf for t in profile.draft_time)
    cost = profile.cost_model()
    cost.require_experts(offload.n_layers, offload.n_experts)
    corrected = OnlineCorrection(cost, profile.draft_time, handling=profile.handling_share)
    assert corrected.cost_model().fixed_time >= 0.0


# ---- what is in it


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family(load: Any, model_type: str) -> None:
    model = load(model_type)
    profile = calibrate(model, max_nodes=3, repeats=1)
    check(profile, model)
    config = tiny_config(model_type)
    assert profile.setup.type == model_type
    assert (profile.setup.n_experts, profile.setup.top_k) == (8, 2)
    assert profile.setup.n_layers == offload_of(model).n_layers <= config.num_hidden_layers
    assert profile.node_misses == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("store", ["disk", "ram"])
def test_what_a_profile_says(load: Any, tmp_path: Path, store: str) -> None:
    model = load(store=store)
    profile = calibrate(model, max_nodes=7, repeats=3)
    check(profile, model)
    assert profile.node_sizes == (1, 2, 4, 7)
    assert profile.repeats == 3
    assert profile.prefix_tokens == 32
    setup = profile.setup
    assert (setup.dtype, setup.device, setup.store) == ("float32", "cpu", store)
    assert setup.link_bandwidth is None
    assert profile.drafter is None
    assert profile.draft_time == ()
    path = tmp_path / "tiny.json"
    profile.save(path)
    assert load_runtime_profile(path) == profile


def test_nothing_private_is_in_a_profile(load: Any, tmp_path: Path) -> None:
    model = load()
    profile = calibrate(model, max_nodes=1, repeats=1)
    text = json.dumps(profile.to_dict())
    folder = Path(model.config.name_or_path)
    assert folder.is_absolute()
    assert profile.name == f"{folder.name} from disk"
    assert str(folder.parent) not in text
    names = [socket.gethostname(), os.path.expanduser("~")]
    with contextlib.suppress(OSError, KeyError):  # a container may run as a user without a name
        names.append(f"/{getpass.getuser()}/")
    for private in names:
        assert len(private) < 5 or private not in text


def test_an_emulated_link_is_in_the_profile_and_in_the_price(load: Any) -> None:
    model = load(link_bandwidth=2e7)
    profile = calibrate(model, **FEW)
    check(profile, model)
    assert profile.setup.link_bandwidth == 2e7
    assert profile.setup.store == "emulated-disk"
    for seconds, moved in zip(profile.expert_time, profile.setup.moved_bytes, strict=True):
        assert seconds >= 0.999 * moved / 2e7
    with pytest.raises(InvalidInputError, match=r"link_bandwidth 20000000\.0"):
        profile.check_fits(offload_of(load()))


@pytest.mark.parametrize("slots", [1, 3])
def test_a_cache_too_small_for_a_pass_is_said(load: Any, slots: int) -> None:
    model = load(expert_cache=slots)
    profile = calibrate(model, max_nodes=16, repeats=2)
    check(profile, model)
    # One token uses two experts a layer, sixteen use most of the eight.
    assert (profile.node_misses[0] > 0.0) == (slots == 1)
    assert profile.node_misses[-1] > 0.0
    assert (profile.handling_time > 0.0) <= (slots == 3)  # no pass fits into one slot


@pytest.mark.parametrize("kind", ["eagle3", "lm", "prompt-lookup"])
def test_drafters(load: Any, tmp_path: Path, kind: str) -> None:
    model = load()
    if kind == "eagle3":
        drafter = f"eagle3:{tiny_eagle3(tmp_path, model.config)}"
    elif kind == "lm":
        drafter = f"lm:{tiny_lm(tmp_path, 160)}"
    else:
        drafter = kind
    profile = calibrate(model, drafter, draft_levels=3, **FEW)
    check(profile, model)
    assert profile.drafter == kind
    assert len(profile.draft_time) == 3


def test_a_drafter_object_with_nothing_to_draft(load: Any) -> None:
    model = load()
    profile = calibrate(model, PromptLookup(), prompt=[1, 2, 3], **FEW)
    assert profile.prefix_tokens == 3
    assert 1 <= len(profile.draft_time) <= 6
    check(profile, model)


def test_the_shipped_model() -> None:
    model = load_offloaded(demo_model(), expert_cache="25%")
    with offload_of(model):
        profile = calibrate(model, f"eagle3:{demo_drafter()}", max_nodes=8, repeats=1)
        check(profile, model)
        assert profile.name == "model from disk"
        assert profile.setup.n_layers == 8
        assert profile.setup.dtype == "bfloat16"
        assert len(profile.draft_time) == 6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("slots", [2, 8])
def test_on_a_cuda_device(load: Any, slots: int) -> None:
    model = load(device="cuda", store="pinned", expert_cache=slots)
    held = offload_of(model).cache.resident.copy()
    profile = calibrate(model, "prompt-lookup", max_nodes=8, repeats=3)
    check(profile, model)
    assert profile.setup.device == "cuda"
    assert (profile.node_misses[-1] > 0.0) == (slots == 2)
    assert (offload_of(model).cache.resident == held).all()


# ---- what it leaves


def test_the_model_is_as_it_was(load: Any) -> None:
    model, twin = load(expert_cache=4), load(expert_cache=4)
    prompt = tiny_prompt()
    for one in (model, twin):
        one.generate(prompt, max_new_tokens=12, do_sample=False)
    offload = offload_of(model)
    held, counters = offload.cache.resident.copy(), offload.cache.counters()
    weights = {name: w.clone() for name, w in model.named_parameters() if not w.is_meta}
    mode, implementation = model.training, model.config._attn_implementation
    torch_state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].tolist()  # noqa: NPY002
    profile = calibrate(model, "prompt-lookup", **FEW)
    check(profile, model)
    assert (offload.cache.resident == held).all()
    assert offload.cache.counters() == counters
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002
    assert (model.training, model.config._attn_implementation) == (mode, implementation)
    for name, weight in model.named_parameters():
        assert weight.is_meta or torch.equal(weight, weights[name])
    # Decoding goes on as if nothing had been measured: the same tokens, the same misses.
    results = [one.generate(prompt, max_new_tokens=30, do_sample=False) for one in (model, twin)]
    assert torch.equal(*results)
    moved = [offload_of(one).cache.counters() for one in (model, twin)]
    assert moved[0].misses == moved[1].misses
    assert moved[0].bytes == moved[1].bytes


def test_a_new_cache_is_empty_again(load: Any) -> None:
    model = load()
    calibrate(model, **FEW)
    assert not offload_of(model).cache.resident.any()
    assert offload_of(model).cache.counters().lookups == 0
    # The store moved it all the same, and says so.
    assert offload_of(model).store.counters().fetches > 0


@pytest.mark.parametrize("step", [0, 3, 6])
def test_an_interrupt_leaves_the_model_usable(load: Any, step: int) -> None:
    model = load(expert_cache=4)
    prompt = tiny_prompt()
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
    held, counters = offload_of(model).cache.resident.copy(), offload_of(model).cache.counters()
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) > step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(model, "prompt-lookup", progress=progress, **FEW)
    assert (offload_of(model).cache.resident == held).all()
    assert offload_of(model).cache.counters() == counters
    assert torch.equal(model.generate(prompt, max_new_tokens=8, do_sample=False), expected)
    check(calibrate(model, **FEW), model)


def test_a_store_that_fails(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load()
    store = offload_of(model).store
    fetch, count = store.fetch, 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 20:
            raise StoreError("the disk went away")
        return fetch(*arguments, **options)

    monkeypatch.setattr(store, "fetch", failing)
    with pytest.raises(StoreError, match="the disk went away"):
        calibrate(model, **FEW)
    check(calibrate(model, **FEW), model)


def test_a_full_disk_after_measuring(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    profile = calibrate(load(), max_nodes=1, repeats=1)

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        profile.save(tmp_path / "tiny.json")
    assert os.listdir(tmp_path) == []


# ---- quick, and in use


def test_quick_works_within_a_decode_that_has_the_model(load: Any) -> None:
    model = load()
    profile = exclusively(
        [(offload_of(model), BUSY)],
        lambda: calibrate_briefly(model, make_drafter("prompt-lookup")),
    )
    check(profile, model)
    assert profile.node_sizes[:2] == (1, 4)
    assert profile.node_sizes[-1] <= 16
    assert 1 <= profile.repeats <= 3
    assert profile.prefix_tokens == 8


def test_quick_that_is_late_still_measures_two_sizes(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = dataclasses.replace(measure._QUICK, most_seconds=0.0)
    monkeypatch.setattr(measure, "_QUICK", late)
    profile = calibrate_briefly(load(), None)
    assert profile.node_sizes == (1, 4)
    assert profile.repeats == 1


def test_a_busy_model_is_not_measured(load: Any) -> None:
    model = load()
    with pytest.raises(BusyError, match="decoding for another"):
        exclusively([(offload_of(model), BUSY)], lambda: calibrate(model))
    check(calibrate(model, **FEW), model)


def test_progress_runs_to_its_end(load: Any) -> None:
    seen: list[tuple[int, int]] = []
    calibrate(load(), "prompt-lookup", progress=lambda *step: seen.append(step), **FEW)
    done, totals = zip(*seen, strict=True)
    assert len(set(totals)) == 1
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]


# ---- bad input


def test_a_stock_model_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="has no offloaded experts; load the model with"):
        calibrate(tiny_model("qwen3_moe"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_nodes": 0}, "max_nodes must be a whole number from 1 to 4096"),
        ({"repeats": 0}, "repeats must be a whole number from 1 to 1000"),
        ({"repeats": 2**31}, "repeats must be a whole number from 1 to 1000"),
        ({"repeats": 1.5}, "repeats must be a whole number"),
        ({"draft_levels": 0}, "draft_levels must be a whole number from 1 to 1000"),
        ({"prompt": []}, "the prompt is empty; give at least one token"),
        ({"prompt": [160]}, "token 160 is none of the model's"),
        ({"drafter": "nothing"}, "nothing"),
    ],
)
def test_bad_arguments(load: Any, options: dict[str, Any], message: str) -> None:
    model = load()
    with pytest.raises(InvalidInputError, match=message):
        calibrate(model, **options)
    assert not offload_of(model).cache.resident.any()
    assert exclusively([(offload_of(model), BUSY)], lambda: True)  # it was released


def test_a_drafter_of_another_vocabulary(load: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="96 token ids, the target 160"):
        calibrate(load(), f"lm:{tiny_lm(tmp_path, 96)}")


def test_a_tiny_context_leaves_room_for_the_tree(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", tmp_path, max_position_embeddings=24)
    model = load_offloaded(folder, expert_cache=8)
    with offload_of(model):
        profile = calibrate(model, max_nodes=40, repeats=1)
    assert profile.prefix_tokens == 6


def test_a_prompt_of_ones_own(load: Any) -> None:
    profile = calibrate(load(), prompt=[1, 2], **FEW)
    assert profile.prefix_tokens == 2
    assert calibrate(load(), prompt=tiny_prompt()[0].tolist(), **FEW).prefix_tokens == 7


def test_the_lazy_name_is_the_function() -> None:
    assert specfit_runtime.calibrate is calibrate
