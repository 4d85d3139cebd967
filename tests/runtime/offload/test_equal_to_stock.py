"""An offloaded model computes what the stock model computes, to rounding."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from rounding import REPRODUCIBLE, assert_same_to_rounding
from stock_models import load_stock
from subprocesses import run_python
from tiny_models import MODEL_TYPES, VARIANTS, layouts, tiny_prompt

from specfit_runtime import load_offloaded, offload_of

FOLDERS = [
    (model_type, layout, shards)
    for model_type in MODEL_TYPES
    for layout in layouts(model_type)
    for shards in (1, 2)
]
SLOTS = (1, 3, 8)
# Every family, layout and number of shards, each with one of the cache sizes.
CASES = [(*folder, SLOTS[n % 3]) for n, folder in enumerate(FOLDERS)]
#: Element types that are stored and that are run in.
CONVERSIONS = [
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),  # in which gpt_oss keeps its norms in float32
]
CONVERTED = ("glm4_moe", "gpt_oss")


def greedy(model: Any, prompt: torch.Tensor | None = None) -> torch.Tensor:
    prompt = tiny_prompt() if prompt is None else prompt
    return model.generate(prompt, max_new_tokens=64, do_sample=False)


@pytest.mark.parametrize(("model_type", "layout", "shards", "slots"), CASES)
def test_forward_is_equal(
    tiny_folder: Any, stock: Any, model_type: str, layout: str, shards: int, slots: int
) -> None:
    folder = tiny_folder(model_type, layout=layout, shards=shards, dtype=torch.float32)
    model = load_offloaded(folder, expert_cache=slots)
    reference = stock(model_type)
    assert type(model) is type(reference)
    assert model.dtype == torch.float32
    for prompt in (tiny_prompt(23), tiny_prompt(1, seed=1)):
        assert_same_to_rounding(model(prompt).logits, reference(prompt).logits)
    counters = offload_of(model).cache.counters()
    assert counters.misses > 0
    assert counters.hits + counters.misses == counters.lookups


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_greedy_tokens_are_equal(
    tiny_folder: Any, stock_tokens: Any, model_type: str, slots: int
) -> None:
    layout = layouts(model_type)[-1 if slots == 1 else 0]
    model = load_offloaded(tiny_folder(model_type, layout=layout, shards=2), expert_cache=slots)
    want = stock_tokens(model_type)
    assert want.shape == (1, 7 + 64)
    assert len(set(want[0, 7:].tolist())) > 16  # varied, or equality would mean little
    assert torch.equal(greedy(model), want)


@pytest.mark.parametrize("model_type", VARIANTS)
def test_greedy_tokens_of_variants_are_equal(
    tiny_folder: Any, stock_tokens: Any, model_type: str
) -> None:
    model = load_offloaded(tiny_folder(model_type), expert_cache=2)
    assert torch.equal(greedy(model), stock_tokens(model_type))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "slots"), list(product(FOLDERS, (1, 2, 3, 5, 8))), ids=lambda value: str(value)
)
def test_greedy_tokens_of_every_combination(
    tiny_folder: Any, stock_tokens: Any, folder: Any, slots: int
) -> None:
    model_type, layout, shards = folder
    path = tiny_folder(model_type, layout=layout, shards=shards)
    assert torch.equal(greedy(load_offloaded(path, expert_cache=slots)), stock_tokens(model_type))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_kinds_of_attention(tiny_folder: Any, stock: Any, attention: str) -> None:
    model = load_offloaded(
        tiny_folder("qwen3_moe"), expert_cache=2, attn_implementation=attention
    )
    reference = stock("qwen3_moe", attn_implementation=attention)
    assert model.config._attn_implementation == attention
    assert_same_to_rounding(model(tiny_prompt(23)).logits, reference(tiny_prompt(23)).logits)


@pytest.mark.parametrize(("stored", "run"), CONVERSIONS)
@pytest.mark.parametrize("model_type", CONVERTED)
def test_running_in_another_type_than_the_checkpoint(
    tiny_folder: Any, model_type: str, stored: torch.dtype, run: torch.dtype
) -> None:
    folder = tiny_folder(model_type, dtype=stored)
    model = load_offloaded(folder, expert_cache=2, dtype=run)
    reference = load_stock(folder, dtype=run)
    want = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.dtype == want[name].dtype, name
        assert tensor.is_meta or torch.equal(tensor, want[name]), name
    if run == torch.float32:
        assert_same_to_rounding(model(tiny_prompt(23)).logits, reference(tiny_prompt(23)).logits)


_FORWARD = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from rounding import plain_products
from stock_models import load_stock
from tiny_models import tiny_checkpoint, tiny_prompt
from specfit_runtime import load_offloaded, offload_of
plain_products()
for n, (model_type, *types) in enumerate(json.loads(sys.argv[2])):
    stored, run = (getattr(torch, name) for name in types)
    folder = tiny_checkpoint(model_type, Path(str(n)), shards=1 + n % 2, dtype=stored)
    reference = load_stock(folder, dtype=run)
    model = load_offloaded(folder, expert_cache=1 + n % 8, dtype=run)
    with offload_of(model), torch.no_grad():
        for prompt in (tiny_prompt(23), tiny_prompt(1, seed=1)):
            found, expected = model(prompt).logits, reference(prompt).logits
            assert found.dtype == run
            print(torch.equal(found, expected))
"""


def test_forward_is_equal_to_the_bit_with_reproducible_kernels(tmp_path: Path) -> None:
    """In half precision there is no other measure: a last bit can choose another expert."""
    cases = [(m, t, t) for m in MODEL_TYPES for t in ("float32", "bfloat16")]
    cases += [(m, *map(_name, types)) for m in CONVERTED for types in CONVERSIONS]
    tests = Path(__file__).resolve().parents[2]
    done = run_python(_FORWARD, tests, json.dumps(cases), cwd=tmp_path, env=REPRODUCIBLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * (2 * len(cases))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def test_float64_agrees_with_eager(tiny_folder: Any) -> None:
    # The stock grouped_mm has no float64 on a CPU.
    folder = tiny_folder("deepseek_v3")
    model = load_offloaded(folder, expert_cache=2, dtype="float64")
    reference = load_stock(folder, dtype=torch.float64, experts_implementation="eager")
    got, want = model(tiny_prompt(23)).logits, reference(tiny_prompt(23)).logits
    assert got.dtype == torch.float64
    # The rest of the stock model computes norms and rotations in float32.
    assert torch.allclose(got, want, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize("store", ["disk", "ram"])
def test_stores(tiny_folder: Any, stock_tokens: Any, store: str) -> None:
    model = load_offloaded(
        tiny_folder("mixtral"), expert_cache="40%", store=store, io_threads=2, link_bandwidth=1e9
    )
    assert torch.equal(greedy(model), stock_tokens("mixtral"))


def test_batches_with_padding(tiny_folder: Any, stock: Any) -> None:
    model = load_offloaded(tiny_folder("olmoe"), expert_cache=2)
    prompts = torch.cat([tiny_prompt(9, seed=s) for s in range(3)])
    mask = torch.ones_like(prompts)
    mask[1, :4] = 0
    outputs = [
        m.generate(
            prompts, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        for m in (model, stock("olmoe"))
    ]
    assert torch.equal(*outputs)


def test_sampling_with_a_seed(tiny_folder: Any, stock: Any) -> None:
    model = load_offloaded(tiny_folder("glm4_moe"), expert_cache=2)
    outputs = []
    for m in (model, stock("glm4_moe")):
        torch.manual_seed(3)
        outputs.append(
            m.generate(tiny_prompt(), max_new_tokens=24, do_sample=True, temperature=0.8, top_k=20)
        )
    assert torch.equal(*outputs)


def test_two_models_keep_their_experts_apart(tiny_folder: Any) -> None:
    # The bug: a second model took over the cache of the first.
    folders = [tiny_folder("qwen3_moe"), tiny_folder("qwen3_moe", seed=1)]
    references = [load_stock(folder) for folder in folders]
    models = [load_offloaded(folder, expert_cache=2) for folder in folders]
    for n in range(3):
        for model, reference in zip(models, references, strict=True):
            prompt = tiny_prompt(5, seed=n)
            assert_same_to_rounding(model(prompt).logits, reference(prompt).logits)


def test_experts_of_one_layer_in_different_shards(
    tiny_folder: Any, stock: Any, stock_tokens: Any
) -> None:
    # The bug: the experts of a layer were looked for in one file.
    model = load_offloaded(tiny_folder("qwen3_moe", shards=5), expert_cache=1)
    index = offload_of(model).index
    files = {r.file for expert in range(8) for r in index.ranges(0, expert)}
    assert len(files) == 5
    assert torch.equal(greedy(model), stock_tokens("qwen3_moe"))
