"""Defaults that the caller set for code of his own change nothing, and are left as they were."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from tiny_models import tiny_model, tiny_prompt

from specfit_runtime import SpecFit, load_offloaded, offload_of

GREEDY = {"max_new_tokens": 8, "do_sample": False}


@contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def settings():
    """Return what a library must not change behind its caller's back."""
    return (
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        np.geterr(),
        [str(f) for f in warnings.filters],
        os.getcwd(),
        dict(os.environ),
    )


@pytest.mark.parametrize(
    "ambient",
    [
        lambda: default_device("meta"),
        lambda: default_dtype(torch.float64),
        lambda: default_dtype(torch.bfloat16),
        lambda: torch.inference_mode(),
        lambda: torch.enable_grad(),
        deterministic,
        lambda: np.errstate(all="raise"),
    ],
    ids=["meta", "float64", "bfloat16", "inference", "grad", "deterministic", "errstate"],
)
def test_tokens_and_settings(tiny_folder, ambient):
    folder, prompt = tiny_folder("qwen3_moe"), tiny_prompt(8)
    want = tiny_model("qwen3_moe").generate(prompt, **GREEDY)
    with ExitStack() as stack:
        stack.enter_context(ambient())
        before = settings()
        model = load_offloaded(folder, expert_cache=3, dtype="float32")
        plain = model.generate(prompt, **GREEDY)
        # Measures, predicts, prefetches, calibrates, chooses: all parts that make tensors.
        spec = SpecFit("prompt-lookup", policy="specfit")
        quick = model.generate(prompt, **GREEDY, custom_generate=spec)
        assert settings() == before
    assert plain.tolist() == quick.tolist() == want.tolist()
    # And in the usual surroundings it goes on.
    assert model.generate(prompt, **GREEDY, custom_generate=spec).tolist() == want.tolist()
    offload_of(model).close()
