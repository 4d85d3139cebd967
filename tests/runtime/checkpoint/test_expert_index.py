"""Experts are found whichever way they are stored, and what is wrong with them is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edit_checkpoint import copy_of, edit_json, edit_tensors, shards_of
from safetensors.torch import load_file, save_file
from tiny_models import MODEL_TYPES, VARIANTS, deal_out, layouts, tiny_config, tiny_model

from specfit_runtime.checkpoint import Checkpoint, ExpertIndex, index_experts
from specfit_runtime.errors import CheckpointError
from specfit_runtime.families import FAMILIES, family_for

F32 = torch.float32


def index_of(folder: Path, model_type: str, dtype: torch.dtype = F32, **changes: Any) -> Any:
    config = tiny_config(model_type, **changes)
    return index_experts(Checkpoint(folder), family_for(config), config, dtype)


def record(index: ExpertIndex, layer: int, expert: int) -> torch.Tensor:
    """Read a record naively; elements that no range fills are zero."""
    layout = index.layouts[layer]
    out = torch.zeros(layout.n_elements, dtype=layout.dtype)
    for r in index.ranges(layer, expert):
        with index.files[r.file].open("rb") as file:
            file.seek(r.offset)
            stored = torch.frombuffer(bytearray(file.read(r.n_bytes)), dtype=r.dtype)
        assert len(stored) == r.n_elements
        out[r.at : r.at + r.n_elements] = stored.to(layout.dtype)
    return out


def assert_holds(index: ExpertIndex, model: Any) -> None:
    """Assert that every record holds what the stock model's experts hold, bit for bit."""
    family = FAMILIES[model.config.model_type]
    layers = family.moe_layers(model.config)
    assert index.n_layers == len(layers)
    for n, layer in enumerate(layers):
        module = model.get_submodule(family.experts_path(layer))
        for expert in range(index.n_experts):
            views = index.layouts[n].views(record(index, n, expert)[None])
            assert set(views) == {name for name, _ in module.named_parameters()}
            for name, view in views.items():
                want = module.get_parameter(name)[expert]
                assert torch.equal(view[0], want.to(view.dtype)), (layer, expert, name)


CASES = [(m, layout, n) for m in MODEL_TYPES for layout in layouts(m) for n in (1, 2, 5)]


@pytest.mark.parametrize(("model_type", "layout", "shards"), CASES)
def test_every_family_layout_and_number_of_shards(
    tiny_folder: Any, model_type: str, layout: str, shards: int
) -> None:
    folder = tiny_folder(model_type, layout=layout, shards=shards)
    index, taken = index_of(folder, model_type)
    assert_holds(index, tiny_model(model_type))
    assert index.n_experts == 8
    assert index.top_k == 2
    expert_keys = {k for k in Checkpoint(folder).tensors if ".experts." in k and "shared" not in k}
    assert taken == expert_keys
    assert set(index.files) == {Checkpoint(folder).tensors[key].file for key in taken}
    spread = [{r.file for r in index.ranges(0, e)} for e in range(8)]
    assert any(len(files) > 1 for files in spread) == (shards > 1)
    for layer in range(index.n_layers):
        stored = {sum(r.n_bytes for r in index.ranges(layer, e)) for e in range(8)}
        assert stored == {index.stored_bytes[layer]}
        assert index.record_bytes[layer] == index.layouts[layer].n_bytes
    assert index.stored_bytes.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        index.stored_bytes[0] = 1


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_published_names(tiny_folder: Any, model_type: str) -> None:
    # What the hub's checkpoints call an expert's first tensor; a test of the test material.
    name = {
        "mixtral": "model.layers.1.block_sparse_moe.experts.0.w1.weight",
        "gpt_oss": "model.layers.1.mlp.experts.gate_up_proj",
    }.get(model_type, "model.layers.1.mlp.experts.0.gate_proj.weight")
    assert name in Checkpoint(tiny_folder(model_type)).tensors


def test_layers_may_be_stored_in_different_ways(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("qwen3_moe"), tmp_path / "x")
    fused = load_file(tiny_folder("qwen3_moe", layout="fused") / "model.safetensors")

    def mix(tensors: dict[str, torch.Tensor]) -> None:
        # Layer 1 fused, of layer 2 only the down projections.
        for key in [k for k in tensors if "layers.1.mlp.experts." in k]:
            del tensors[key]
        for key in [k for k in tensors if "layers.2.mlp.experts." in k and "down_proj" in k]:
            del tensors[key]
        for name in ("1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj"):
            tensors[f"model.layers.{name}"] = fused[f"model.layers.{name}"]
        tensors["model.layers.2.mlp.experts.down_proj"] = fused[
            "model.layers.2.mlp.experts.down_proj"
        ]

    edit_tensors(folder, mix)
    deal_out(folder, 3)
    index, _ = index_of(folder, "qwen3_moe")
    assert_holds(index, tiny_model("qwen3_moe"))


def test_fused_mixtral_under_the_published_block_name(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("mixtral", layout="fused"), tmp_path / "x")

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            tensors[key.replace(".mlp.", ".block_sparse_moe.")] = tensors.pop(key)

    edit_tensors(folder, rename)
    index, _ = index_of(folder, "mixtral")
    assert_holds(index, tiny_model("mixtral"))


def test_only_moe_layers_are_counted(tiny_folder: Any) -> None:
    folder = tiny_folder("qwen3_moe-dense-layer")
    index, _ = index_of(folder, "qwen3_moe-dense-layer")
    assert index.n_layers == 2
    assert_holds(index, tiny_model("qwen3_moe-dense-layer"))
    assert "qwen3_moe-dense-layer" in VARIANTS


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
def test_other_float_types_are_converted(
    tiny_folder: Any, tmp_path: Path, stored: torch.dtype, run: torch.dtype
) -> None:
    folder = copy_of(tiny_folder("qwen3_moe"), tmp_path / "x")
    model = tiny_model("qwen3_moe").to(stored)

    def convert(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({k: v.to(stored) for k, v in tensors.items()})

    edit_tensors(folder, convert)
    index, _ = index_of(folder, "qwen3_moe", run)
    assert_holds(index, model)
    assert index.record_bytes[0] == 3 * 16 * 48 * run.itemsize
    assert index.stored_bytes[0] == 3 * 16 * 48 * stored.itemsize


def test_one_expert_may_mix_float_types(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("qwen3_moe", dtype=torch.bfloat16), tmp_path / "x")

    def widen(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({k: v.float() for k, v in tensors.items() if "down_proj" in k})

    edit_tensors(folder, widen)
    index, _ = index_of(folder, "qwen3_moe")
    assert {r.dtype for r in index.ranges(0, 0)} == {torch.bfloat16, torch.float32}
    assert_holds(index, tiny_model("qwen3_moe", torch.bfloat16))


# ---- what is refused


def broken(tiny_folder: Any, tmp_path: Path, edit: Any, model_type: str = "qwen3_moe") -> Path:
    folder = copy_of(tiny_folder(model_type), tmp_path / "x")
    edit_tensors(folder, edit)
    return folder


def test_names_that_do_not_match_are_never_taken_for_a_model_without_experts(
    tiny_folder: Any, tmp_path: Path
) -> None:
    # The bug: keys of one family did not match a pattern, and nothing was offloaded.
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            tensors[key.replace("mlp.experts.", "ffn.experts.")] = tensors.pop(key)

    folder = broken(tiny_folder, tmp_path, rename)
    with pytest.raises(CheckpointError, match="nothing of it would be offloaded") as error:
        index_of(folder, "qwen3_moe")
    for name in (
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.ffn.experts.0.gate_proj.weight",
    ):
        assert name in str(error.value)


def test_experts_of_another_family(tiny_folder: Any) -> None:
    with pytest.raises(CheckpointError, match="no expert of layer 0"):
        index_of(tiny_folder("mixtral"), "olmoe")


def test_a_missing_tensor_is_named(tiny_folder: Any, tmp_path: Path) -> None:
    key = "model.layers.1.mlp.experts.5.up_proj.weight"
    folder = broken(tiny_folder, tmp_path, lambda tensors: tensors.pop(key))
    with pytest.raises(CheckpointError, match=f"lacks {key}, of the 8 experts of layer 1"):
        index_of(folder, "qwen3_moe")


def test_missing_experts_are_counted(tiny_folder: Any) -> None:
    with pytest.raises(CheckpointError, match=r"experts\.8\.gate_proj.* and 7 more tensor"):
        index_of(tiny_folder("qwen3_moe"), "qwen3_moe", num_experts=12)


def test_leftover_experts_are_refused(tiny_folder: Any) -> None:
    with pytest.raises(CheckpointError, match=r"belongs to no expert.*3 layers of 6 experts"):
        index_of(tiny_folder("qwen3_moe"), "qwen3_moe", num_experts=6)


def test_scales_of_a_quantised_checkpoint_are_refused(tiny_folder: Any, tmp_path: Path) -> None:
    key = "model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv"
    folder = broken(tiny_folder, tmp_path, lambda t: t.update({key: torch.ones(1)}))
    with pytest.raises(CheckpointError, match=f"holds {key}"):
        index_of(folder, "qwen3_moe")


def test_a_piece_that_is_stored_twice(tiny_folder: Any, tmp_path: Path) -> None:
    key = "model.layers.0.mlp.experts.down_proj"
    folder = broken(tiny_folder, tmp_path, lambda t: t.update({key: torch.ones(8, 48, 16)}))
    with pytest.raises(CheckpointError, match="stores experts of layer 0 twice"):
        index_of(folder, "qwen3_moe")


def test_two_names_of_one_tensor(tiny_folder: Any, tmp_path: Path) -> None:
    key = "model.layers.0.mlp.gate.weight"
    folder = broken(tiny_folder, tmp_path, lambda t: t.update({key: torch.ones(1)}), "mixtral")
    with pytest.raises(CheckpointError, match=r"holds both .* and .*, which are the same tensor"):
        index_of(folder, "mixtral")


@pytest.mark.parametrize("layout", ["per-expert", "fused"])
def test_a_wrong_shape_is_named(tiny_folder: Any, layout: str) -> None:
    folder = tiny_folder("qwen3_moe", layout=layout)
    with pytest.raises(CheckpointError, match=r"experts\..*shape \[.*configuration asks for \["):
        index_of(folder, "qwen3_moe", moe_intermediate_size=24)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_a_wrong_type_is_named(
    tiny_folder: Any, tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    key = "model.layers.2.mlp.experts.7.down_proj.weight"
    folder = broken(tiny_folder, tmp_path, lambda t: t.update({key: t[key].to(dtype)}))
    with pytest.raises(CheckpointError, match=f"{key} in .* is stored as {name}; .* must be"):
        index_of(folder, "qwen3_moe")


def test_experts_of_different_sizes_in_one_layer(tiny_folder: Any, tmp_path: Path) -> None:
    key = "model.layers.1.mlp.experts.3.down_proj.weight"
    folder = broken(tiny_folder, tmp_path, lambda t: t.update({key: t[key].bfloat16()}))
    with pytest.raises(CheckpointError, match=r"layer 1 in different element types: .*expert 3"):
        index_of(folder, "qwen3_moe")


def test_mxfp4_blocks_without_their_configuration(tiny_folder: Any, tmp_path: Path) -> None:
    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        for key in [k for k in tensors if k.endswith("experts.gate_up_proj")]:
            del tensors[key]
            tensors[f"{key}_blocks"] = torch.ones(8, 64, 2, 16, dtype=torch.uint8)

    folder = broken(tiny_folder, tmp_path, quantise, "gpt_oss")
    with pytest.raises(CheckpointError, match=r"no expert of layer 0 .*gate_up_proj_blocks"):
        index_of(folder, "gpt_oss")


# ---- files


def sharded(tiny_folder: Any, tmp_path: Path) -> Path:
    return copy_of(tiny_folder("qwen3_moe", shards=3), tmp_path / "x")


def test_a_missing_shard_is_named(tiny_folder: Any, tmp_path: Path) -> None:
    folder = sharded(tiny_folder, tmp_path)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.* of the 3 shards .* missing"):
        Checkpoint(folder)


def test_a_truncated_shard_is_named(tiny_folder: Any, tmp_path: Path) -> None:
    folder = sharded(tiny_folder, tmp_path)
    path = folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003.* is truncated"):
        Checkpoint(folder)


def test_a_shard_that_lacks_what_the_index_promises(tiny_folder: Any, tmp_path: Path) -> None:
    folder = sharded(tiny_folder, tmp_path)
    edit_json(
        folder / "model.safetensors.index.json",
        lambda index: index["weight_map"].update(extra="model-00001-of-00003.safetensors"),
    )
    with pytest.raises(CheckpointError, match=r"00001-of-00003.* does not hold extra"):
        Checkpoint(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 1}'])
def test_a_malformed_index(tiny_folder: Any, tmp_path: Path, content: str) -> None:
    folder = sharded(tiny_folder, tmp_path)
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json: (no JSON|it |weight_map)"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pytorch_model.bin", "pickle format"),
        ("model.gguf", "only GGUF"),
        ("model-00001-of-00002.safetensors", "whose index is missing"),
        ("README.md", "give the folder of a safetensors checkpoint"),
    ],
)
def test_folders_without_usable_weights(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(tmp_path)


def test_of_two_copies_the_one_counts_that_the_index_names(
    tiny_folder: Any, tmp_path: Path
) -> None:
    folder = sharded(tiny_folder, tmp_path)
    place = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    key = "model.layers.0.mlp.experts.0.up_proj.weight"
    for path in shards_of(folder):
        if path.name != place[key]:
            stale = {**load_file(path), key: torch.zeros(16, 48)}
            save_file(stale, path, metadata={"format": "pt"})
    assert_holds(index_of(folder, "qwen3_moe")[0], tiny_model("qwen3_moe"))
