"""The shipped predictor of routing: what it is made for, what it may cost, and that it is good."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from specfit_opt.routing_predictor import DraftNodes
from specfit_runtime import (
    SpecFit,
    demo_drafter,
    demo_model,
    demo_predictor,
    load_offloaded,
    offload_of,
)
from specfit_runtime.drafters import make_drafter
from specfit_runtime.predictors import make_predictor
from specfit_runtime.predictors.routing_network_files import load_network
from specfit_runtime.tracing import record_trace

PROMPTS = Path(__file__).resolve().parents[3] / "benchmarks" / "heldout_prompts.jsonl"


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    lines = PROMPTS.read_text("utf-8").splitlines()
    return [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]


@pytest.fixture(scope="module")
def model():
    loaded = load_offloaded(demo_model(), expert_cache=0.5, dtype="float32")
    yield loaded
    offload_of(loaded).close()


def test_it_fits_the_shipped_model_and_head():
    network, drafter = load_network(demo_predictor())
    shape = network.shape
    assert (shape.n_layers, shape.n_experts, shape.top_k) == (8, 64, 4)
    assert (shape.vocab_size, shape.state_size) == (4096, 128)
    assert drafter == "eagle3"


def test_it_is_small_and_described():
    files = sorted(path.name for path in demo_predictor().iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    assert sum(path.stat().st_size for path in demo_predictor().iterdir()) < 3e6
    card = (demo_predictor() / "README.md").read_text("utf-8")
    figures = json.loads((demo_predictor() / "config.json").read_text("utf-8"))["training"]
    assert f"{np.mean(figures['recall']):.1%}" in card
    assert f"{figures['nodes']:,} recorded nodes" in card


def test_it_finds_four_of_five_experts_on_held_out_text(model, prompts):
    trace = record_trace(
        model,
        make_drafter(f"eagle3:{demo_drafter()}"),
        prompts[::5],
        max_new_tokens=24,
        levels=2,
        ignore_eos=True,
        states=True,
    )
    predictor = make_predictor(f"learned:{demo_predictor()}")
    predictor.start(trace.n_layers, trace.n_experts, trace.experts.shape[2])
    assert trace.states is not None
    found = predictor.predict(
        DraftNodes(
            trace.token.astype(np.int64),
            trace.parent.astype(np.int64),
            trace.depth.astype(np.int64),
            states=trace.states,
        )
    )
    right = (found[..., :, None] == trace.experts[..., None, :]).any(axis=2).mean(axis=(1, 2))
    assert right[trace.depth == 1].mean() >= 0.8
    assert right[trace.depth == 2].mean() >= 0.78


@pytest.mark.parametrize("policy", ["ecospec", "specfit"])
def test_the_text_stays_the_same(model, prompts, policy):
    ids = torch.tensor([prompts[3]])
    arguments = {"max_new_tokens": 24, "do_sample": False}
    plain = model.generate(ids, **arguments)
    spec = SpecFit(
        f"eagle3:{demo_drafter()}", policy=policy, predictor=f"learned:{demo_predictor()}"
    )
    drafted = model.generate(ids, **arguments, custom_generate=spec)
    assert drafted.tolist() == plain.tolist()
    assert spec.report.predictor == "learned"
