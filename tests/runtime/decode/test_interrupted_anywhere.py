"""An interrupt at any point of the runtime leaves model, SpecFit and drafter usable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from eager_prefetch import fetch_all_guesses
from interrupts import Interrupter
from tiny_drafters import tiny_lm
from tiny_models import tiny_model, tiny_prompt

import specfit_runtime
from specfit_runtime import SpecFit, calibrate, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter

ROOT = Path(specfit_runtime.__file__).parent
#: What decodes; not what loads models or writes files.
FILES = [
    ROOT / name for name in ("speculate.py", "offload.py", "experts.py", "exclusive.py",
                             "acceptance.py", "routing_record.py", "tracing.py")
] + [
    file
    for folder in ("decode", "verify", "expert_cache", "stores", "policies", "predictors",
                   "drafters", "calibration", "expert_compute", "prefetch")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
GREEDY = {"max_new_tokens": 7, "do_sample": False}


@pytest.fixture
def scene(tiny_folder, tmp_path):
    model = load_offloaded(tiny_folder("qwen3_moe"), expert_cache=3, dtype="float32")
    prompt = tiny_prompt(5)
    want = tiny_model("qwen3_moe").generate(prompt, **GREEDY).tolist()
    drafter = make_drafter(f"lm:{tiny_lm(tmp_path / 'lm', 160)}")
    yield model, prompt, want, drafter
    offload_of(model).close()


def sweep(scene, action, points, check) -> None:
    interrupter = Interrupter(FILES)
    assert not interrupter.run(action)
    total = interrupter.count
    rng = np.random.default_rng(0)
    for at in sorted(rng.choice(np.arange(1, total + 1), min(points, total), replace=False)):
        # A point that a shorter path leaves out is no interrupt; what follows is checked the same.
        interrupter.run(action, int(at))
        check()


@pytest.mark.parametrize("points", [8, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["specfit", "eagle-6"])
def test_a_decode(scene, policy, points, monkeypatch):
    fetch_all_guesses(monkeypatch)
    model, prompt, want, drafter = scene
    spec = SpecFit(drafter, policy=policy)

    def decode():
        return model.generate(prompt, **GREEDY, custom_generate=spec).tolist()

    def check():
        assert model.generate(prompt, **GREEDY).tolist() == want
        assert decode() == want
        counters = offload_of(model).cache.counters()
        assert counters.lookups == counters.hits + counters.misses

    decode()
    sweep(scene, decode, points, check)


@pytest.mark.parametrize("points", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_a_calibration(scene, points):
    model, prompt, want, drafter = scene
    spec = SpecFit(drafter, policy="chain-2")

    def measure():
        return calibrate(model, drafter, max_nodes=3, repeats=1, prompt=[4, 5, 6], draft_levels=1)

    def check():
        assert model.generate(prompt, **GREEDY).tolist() == want
        assert model.generate(prompt, **GREEDY, custom_generate=spec).tolist() == want

    measure()
    sweep(scene, measure, points, check)
    assert measure().node_sizes == (1, 2, 3)


class Fails:
    """A streamer, criterion or processor of the user's that raises at its n-th call."""

    def __init__(self, n):
        self.left = n

    def put(self, value):
        self()

    def end(self):
        """Nothing to do."""

    def __call__(self, input_ids=None, scores=None):
        self.left -= 1
        if not self.left:
            raise ZeroDivisionError("mine")
        return torch.tensor([False]) if scores is None else scores


@pytest.mark.parametrize("what", ["streamer", "stopping_criteria", "logits_processor"])
def test_an_error_of_the_users(scene, what):
    model, prompt, want, drafter = scene
    spec = SpecFit(drafter, policy="eagle-6")
    for n in (1, 2, 4):
        fails = Fails(n)
        given = fails if what == "streamer" else [fails]
        with pytest.raises(ZeroDivisionError, match="mine"):
            model.generate(prompt, **GREEDY, custom_generate=spec, **{what: given})
        assert model.generate(prompt, **GREEDY, custom_generate=spec).tolist() == want
        assert model.generate(prompt, **GREEDY).tolist() == want
