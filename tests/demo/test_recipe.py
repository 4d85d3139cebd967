"""The recipe as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.slow
@pytest.mark.usefixtures("recipe")
def test_the_smoke_run_makes_a_model_that_transformers_loads(tmp_path):
    command = [sys.executable, "-m", "tools.demo_model", "all", "--smoke", "--work", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "demo"
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    ids = tokenizer("The captain carried", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=8, do_sample=False)
    assert made.shape[1] > ids.shape[1]
    figures = json.loads((out / "model" / "evaluation.json").read_text("utf-8"))
    # 512 tokens guessed evenly would give 512; the grammar is learned in part.
    assert figures["held_out_perplexity"] < 60
    for name in ("model", "drafter"):
        card = (out / name / "README.md").read_text("utf-8")
        assert "## Measured quality" in card


@pytest.mark.usefixtures("recipe")
def test_splits_depend_on_names_alone():
    from tools.demo_model.corpus import split_of

    assert split_of("wordnet", "data.noun-000000") == "domain"
    found = [split_of("austen", f"chapter-{number}") for number in range(2400)]
    assert set(found) == {"train", "heldout"}
    assert 60 < found.count("heldout") < 140
    assert split_of("austen", "chapter-7") == found[7]
