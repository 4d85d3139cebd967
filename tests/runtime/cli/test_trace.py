"""``specfit trace`` records what ``specfit replay`` walks."""

from __future__ import annotations

import json

import numpy as np
import torch
from stock_models import load_stock
from transformers import AutoTokenizer

from specfit_opt.files import load_trace
from specfit_runtime import demo_model
from specfit_runtime.cli import main
from specfit_runtime.errors import StoreError
from specfit_runtime.verify import TargetSession

PROMPTS = ["Emma could not", "Enter the King.\nKING."]
POOL = ("--levels", "3", "--top-k", "3", "--width", "2", "--dtype", "float32")


def test_recorded_prompts_can_be_replayed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(f"{json.dumps({'prompt': PROMPTS[1]})}\n\n")
    arguments = ("--prompt", PROMPTS[0], "--prompt-file", "prompts.jsonl", "-o", "t.npz", "--json")
    assert main(["trace", *arguments, "--max-new-tokens", "10", "--ignore-eos", *POOL]) == 0
    document = json.loads(capsys.readouterr().out)
    trace = load_trace("t.npz")
    assert (document["prompts"], document["positions"]) == (2, 18)
    assert document["nodes"] == trace.n_nodes == 18 * (1 + 3 + 6 + 6)
    assert document["expert_bytes"] == [24_576] * 8
    tokenizer = AutoTokenizer.from_pretrained(demo_model())
    stock = load_stock(demo_model(), dtype=torch.float32)
    for i, prompt in enumerate(PROMPTS):
        inputs = tokenizer(prompt, return_tensors="pt")
        output = stock.generate(
            **inputs, do_sample=False, temperature=None, top_k=None, max_new_tokens=10
        )
        roots = trace.token[trace.cycle_start[:-1]][trace.prompt == i]
        assert roots.tolist() == output[0, inputs["input_ids"].shape[1] : -1].tolist()

    arguments = ("--policy", "ar", "pool-exact", "--cache", "25%", "--warmup", "2", "--json")
    assert main(["replay", "t.npz", *arguments]) == 0
    ar, specfit = json.loads(capsys.readouterr().out)
    assert ar["tokens"] == ar["passes"] == 2 * (9 - 2)
    assert specfit["passes"] <= ar["passes"]


def test_states_are_recorded_on_demand(tmp_path, capsys):
    path = tmp_path / "t.npz"
    arguments = ("--prompt", PROMPTS[0], "--max-new-tokens", "3", "-o", str(path), *POOL)
    assert main(["trace", "--states", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["state_size"] == 128
    states = load_trace(path).states
    assert states is not None
    assert states.shape == (2 * 16, 128)
    assert main(["trace", "--states", *arguments]) == 0
    assert capsys.readouterr().out.endswith("with states of size 128\n")
    assert main(["trace", "--drafter", "prompt-lookup", "--states", *arguments]) == 1
    assert "no hidden states to record" in capsys.readouterr().err


def test_the_text_form_says_what_was_recorded(tmp_path, capsys):
    path = tmp_path / "t.npz"
    arguments = ("--drafter", "prompt-lookup", "--max-new-tokens", "3", "-o", str(path))
    assert main(["trace", "--prompt", PROMPTS[0], *arguments, *POOL]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: 1 prompt, 2 positions, ")
    assert np.isfinite(load_trace(path).path_prob).all()


def test_an_error_leaves_no_file(tmp_path, capsys, monkeypatch):
    path = tmp_path / "t.npz"
    commit = TargetSession.commit

    def failing(session, rows):
        if session.length > 8:
            raise StoreError("the disk went away")
        commit(session, rows)

    monkeypatch.setattr(TargetSession, "commit", failing)
    arguments = ("--prompt", "x", "--max-new-tokens", "20", "-o", str(path))
    assert main(["trace", *arguments]) == 1
    assert "the disk went away" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
