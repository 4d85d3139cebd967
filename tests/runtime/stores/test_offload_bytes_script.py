"""Bytes per token against accelerate's disk offload, as benchmarks/offload_bytes.py counts them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny_models import tiny_checkpoint, tiny_prompt

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "offload_bytes.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/ is not here: the tests run outside the checkout")
    spec = importlib.util.spec_from_file_location("offload_bytes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


# float32: that the tokens are the same is promised there. deepseek_v3 has a dense layer and shared
# experts, which stay in memory.
@pytest.mark.parametrize(
    "model_type", ["qwen3_moe", pytest.param("deepseek_v3", marks=pytest.mark.slow)]
)
def test_specfit_hands_over_fewer_bytes_for_the_same_tokens(
    script: ModuleType, tmp_path: Path, model_type: str
) -> None:
    folder = tiny_checkpoint(model_type, tmp_path, layout="fused", dtype=torch.float32)
    prompts = [tiny_prompt(3, seed=seed) for seed in (1, 2)]
    found = script.compare(folder, prompts, 10, shares=[0.125, 0.5])
    assert [c.slots for c in found] == [1, 4]
    expert = 3 * 48 * 16 * 4
    for c in found:
        kept, n_layers = c.layers
        assert c.specfit.n_new == c.accelerate.n_new == 20
        assert len(set(c.specfit.tokens[0][3:])) > 2  # a text, not one token again and again
        assert c.same_tokens
        # Every pass, all 8 experts of each layer that is on disk: counted to the byte.
        assert c.accelerate.n_bytes == 20 * (n_layers - kept) * 8 * expert
        assert 0 < c.specfit.n_bytes < c.accelerate.n_bytes
        assert c.specfit.n_bytes % expert == 0
    assert found[1].specfit.n_bytes < found[0].specfit.n_bytes
    table = script.table(found)
    assert "DIFFER" not in table
    for c in found:
        assert f"{c.specfit.per_token / 1e6:.3f}" in table


def test_a_difference_in_the_tokens_would_show(script: ModuleType) -> None:
    one, other = script.Decoded([[1, 2]], 1, 10), script.Decoded([[1, 3]], 1, 20)
    assert "DIFFER" in script.table([script.Comparison(0.5, 4, (1, 3), one, other)])
