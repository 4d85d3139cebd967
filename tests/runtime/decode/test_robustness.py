"""Long decodes, interrupts and threads leave everything as it should be."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from tiny_models import tiny_prompt

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.decode import loop as loop_module
from specfit_runtime.drafters import CausalLmDrafter
from specfit_runtime.errors import StoreError
from specfit_runtime.expert_cache import ExpertCache
from specfit_runtime.verify import TargetSession

#: Growth of resident memory between the 1,000th and the last token that is taken for noise of the
#: allocator; a leak of one tree's features or routing per pass would be several times as much.
SLACK = 12 * 2**20


def snapshot(offload):
    return offload.cache.counters(), offload.store.counters()


def consistent(offload, before=None):
    """Check that cache and store agree on what was moved, since ``before`` if that is given."""
    counters, store = snapshot(offload)
    if before is not None:
        counters, store = counters - before[0], store - before[1]
    assert counters.hits + counters.misses == counters.lookups
    moved = offload.store.moved_bytes
    assert np.unique(moved).size == 1
    assert counters.bytes == int(moved[0]) * (counters.misses + counters.prefetched)
    assert store.bytes == counters.bytes
    assert store.fetches == counters.misses + counters.prefetched
    assert store.failures == 0


def decode_many(target, policy, tokens):
    model = load_offloaded(target.folder, expert_cache=3, dtype="float32")
    process = psutil.Process()
    with offload_of(model) as offload:
        spec = SpecFit(f"lm:{target.folder}", policy=policy)
        decoded, seen, before = 0, [], None
        while decoded < tokens:
            out = model.generate(
                tiny_prompt(9, seed=decoded),
                max_new_tokens=120,
                do_sample=False,
                custom_generate=spec,
            )
            decoded += out.shape[1] - 9
            totals = spec.report.totals
            assert totals.hits + totals.misses == totals.lookups
            gc.collect()
            seen.append((decoded, process.memory_info().rss, process.num_fds()))
            # The first decode measures costs, which the cache's counters leave out.
            before = before or snapshot(offload)
        consistent(offload, before)
    return seen


@pytest.mark.parametrize("policy", ["ar", "specfit"])
def test_memory_is_flat_and_no_descriptor_leaks(target, policy):
    warm, *_, last = decode_many(target, policy, 1000)[3:]
    assert last[2] == warm[2]
    assert last[1] - warm[1] < SLACK


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ar", "chain-4", "eagle-60", "evict", "ecospec", "specfit"])
def test_memory_is_flat_over_5000_tokens(target, policy):
    warm, *_, last = decode_many(target, policy, 5000)[3:]
    assert last[2] == warm[2]
    assert last[1] - warm[1] < SLACK


@pytest.mark.parametrize("place", ["verify", "accept", "draft", "use"])
def test_an_interrupt_anywhere_leaves_model_and_cache_usable(
    model, spec, target, place, monkeypatch
):
    """Raise KeyboardInterrupt at the n-th call of a part, for many n, and go on each time."""
    owner, name = {
        "verify": (TargetSession, "verify"),
        "accept": (loop_module, "accept"),
        "draft": (CausalLmDrafter, "level"),
        "use": (ExpertCache, "use"),
    }[place]
    stock = target.stock.generate(target.prompt, max_new_tokens=20, do_sample=False)
    real = getattr(owner, name)
    calls, stop = 0, 0

    def interrupting(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    arguments = {"max_new_tokens": 20, "do_sample": False, "custom_generate": spec}
    # Not while the first text is prepared for: that is another part of the program.
    model.generate(target.prompt, **arguments)
    for stop in (1, 2, 3, 5, 8, 13):
        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, interrupting)
            try:
                model.generate(target.prompt, **arguments)
            except KeyboardInterrupt:
                pass
            else:
                assert calls < stop
        again = model.generate(target.prompt, **arguments)
        assert again.tolist() == stock.tolist()
    consistent(offload_of(model))


_INTERRUPTED = """
import os, signal, sys, threading, torch
from specfit_runtime import SpecFit, load_offloaded, offload_of
model = load_offloaded(sys.argv[1], expert_cache=2, dtype="float32", link_bandwidth=1e6)
prompt = torch.arange(1, 9)[None]
arguments = dict(do_sample=False, custom_generate=SpecFit("prompt-lookup", policy="chain-2"))
want = model.generate(prompt, max_new_tokens=6, **arguments).tolist()
interrupts = 0
for delay in (0.05, 0.17, 0.31):
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        model.generate(prompt, max_new_tokens=400, **arguments)
    except KeyboardInterrupt:
        interrupts += 1
    timer.join()
    assert model.generate(prompt, max_new_tokens=6, **arguments).tolist() == want
counters = offload_of(model).cache.counters()
assert counters.hits + counters.misses == counters.lookups
print("interrupted", interrupts)
"""


def test_sigint_while_transfers_are_under_way(target):
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(target.folder)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted", "3"]


def test_two_threads_of_stock_generate_on_one_model_both_get_the_right_text(model, target):
    prompts = [tiny_prompt(6, seed=1), tiny_prompt(11, seed=2)]
    results: list[list[int] | None] = [None, None]

    def run(i):
        out = model.generate(prompts[i], max_new_tokens=24, do_sample=False)
        results[i] = out.tolist()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for prompt, result in zip(prompts, results, strict=True):
        stock = target.stock.generate(prompt, max_new_tokens=24, do_sample=False)
        assert result == stock.tolist()
    consistent(offload_of(model))


def test_a_file_that_is_cut_short_while_decoding_is_a_clear_error(spec, target, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(target.folder, folder)
    weights: Path = next(folder.glob("*.safetensors"))
    model = load_offloaded(folder, expert_cache=1, dtype="float32")
    arguments = {"max_new_tokens": 12, "do_sample": False, "custom_generate": spec}
    with offload_of(model) as offload:
        want = model.generate(target.prompt, **arguments).tolist()
        content = weights.read_bytes()
        with open(weights, "r+b") as handle:
            handle.truncate(len(content) // 3)
        for _ in range(2):
            with pytest.raises(StoreError, match=weights.name):
                model.generate(target.prompt, **arguments)
            counters = offload.cache.counters()
            assert counters.hits + counters.misses == counters.lookups
    weights.write_bytes(content)
    model = load_offloaded(folder, expert_cache=1, dtype="float32")
    with offload_of(model):
        assert model.generate(target.prompt, **arguments).tolist() == want


def test_the_draft_model_does_not_touch_the_targets_cache(model, target):
    """A drafter that is itself of the target's class keeps to its own weights."""
    offload = offload_of(model)
    spec = SpecFit(f"lm:{target.folder}", policy="chain-3")
    before = offload.cache.counters()
    model.generate(target.prompt, max_new_tokens=12, do_sample=False, custom_generate=spec)
    delta = offload.cache.counters() - before
    totals, prefill = spec.report.totals, spec.report.prefill
    assert delta.lookups == totals.lookups + prefill.lookups
    drafter = spec._learned.drafter
    assert not hasattr(drafter, "_specfit_offload")
    assert {id(m) for m in model.modules()}.isdisjoint(
        {id(m) for m in drafter._model.modules()}
    )

