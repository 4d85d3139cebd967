"""What loading takes over from the checkpoint, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from edit_checkpoint import copy_of, edit_json, edit_tensors, shards_of
from rounding import assert_same_to_rounding
from stock_models import load_stock
from tiny_models import layouts, tiny_checkpoint, tiny_prompt

from specfit_runtime import load_offloaded, offload_of
from specfit_runtime.cli.options import load_tokenizer
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import CheckpointError, InvalidInputError


@pytest.fixture
def folder(tiny_folder: Any, tmp_path: Path) -> Path:
    """Return a tiny checkpoint that may be changed."""
    return copy_of(tiny_folder("qwen3_moe"), tmp_path / "x")


def assert_like_stock(folder: Path, **options: Any) -> Any:
    model = load_offloaded(folder, expert_cache=2)
    reference = load_stock(folder, **options)
    assert_same_weights(model, reference)
    if model.dtype == torch.float32:  # in half precision a last bit may choose another expert
        assert_same_to_rounding(model(tiny_prompt(9)).logits, reference(tiny_prompt(9)).logits)
    return model


def assert_same_weights(model: Any, reference: Any) -> None:
    wanted = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.is_meta or torch.equal(tensor, wanted[name]), name


# ---- what is taken over


def test_the_generation_config_is_loaded(folder: Path) -> None:
    edit_json(
        folder / "generation_config.json",
        lambda c: c.update(temperature=0.3, do_sample=True, eos_token_id=[5, 6]),
    )
    config = load_offloaded(folder).generation_config
    assert config.temperature == 0.3
    assert config.do_sample
    assert config.eos_token_id == [5, 6]
    reference = load_stock(folder)
    assert config.to_dict() == reference.generation_config.to_dict()


def test_without_one_the_configuration_s_own_stands(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    edit_json(folder / "config.json", lambda c: c.update(eos_token_id=9))
    model = load_offloaded(folder)
    assert model.generation_config.eos_token_id == 9


def test_a_malformed_generation_config_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: no JSON"):
        load_offloaded(folder)


def test_the_model_is_ready_to_run(folder: Path) -> None:
    model = load_offloaded(folder)
    assert not model.training
    assert model.name_or_path == str(folder)
    # There is no gradient to the experts, so a plain call outside no_grad must work.
    assert torch.is_grad_enabled()
    assert not model(tiny_prompt()).logits.requires_grad


def test_training_is_refused(folder: Path) -> None:
    model = load_offloaded(folder)
    model.requires_grad_(True)
    with pytest.raises(InvalidInputError, match="cannot be trained"):
        model(tiny_prompt())


def test_without_a_type_in_the_configuration_the_tensors_give_it(
    tiny_folder: Any, tmp_path: Path
) -> None:
    folder = copy_of(tiny_folder("qwen3_moe", dtype=torch.bfloat16), tmp_path / "x")
    edit_json(folder / "config.json", lambda c: [c.pop("dtype", 0), c.pop("torch_dtype", 0)])
    model = assert_like_stock(folder)
    assert offload_of(model).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["auto", "float32", "torch.float32", torch.float32])
def test_types_may_be_named(folder: Path, dtype: Any) -> None:
    assert offload_of(load_offloaded(folder, dtype=dtype)).dtype == torch.float32


def test_tied_weights_that_are_stored_twice(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("qwen3_moe-tied"), tmp_path / "x")
    source = "model.embed_tokens.weight"
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t[source].clone()}))
    model = assert_like_stock(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_tied_weights_that_are_stored_under_the_other_name(
    tiny_folder: Any, tmp_path: Path
) -> None:
    folder = copy_of(tiny_folder("qwen3_moe-tied"), tmp_path / "x")
    edit_tensors(
        folder, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")})
    )
    model = assert_like_stock(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_weights_that_are_not_really_tied(tiny_folder: Any, tmp_path: Path) -> None:
    # The configuration says tied, the tensors differ: stock goes by the tensors.
    folder = copy_of(tiny_folder("qwen3_moe-tied"), tmp_path / "x")
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": torch.randn(160, 48)}))
    model = assert_like_stock(folder)
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("layout", ["per-expert", "fused"])
def test_prediction_layers_are_left_out(tmp_path: Path, model_type: str, layout: str) -> None:
    folder = tiny_checkpoint(model_type, tmp_path / "x", layout=layout)

    def add_layer(tensors: dict[str, torch.Tensor]) -> None:
        # Layer 3 of 3 layers: as published, with experts of its own and more.
        for key in [k for k in tensors if k.startswith("model.layers.2.")]:
            tensors[key.replace("layers.2.", "layers.3.")] = tensors[key].clone()
        tensors["model.layers.3.eh_proj.weight"] = torch.ones(48, 96)

    edit_tensors(folder, add_layer)
    model = load_offloaded(folder, expert_cache=2)
    reference = load_stock(tiny_checkpoint(model_type, tmp_path / "y"))
    assert_same_to_rounding(model(tiny_prompt(9)).logits, reference(tiny_prompt(9)).logits)


def test_stored_rotary_frequencies_are_left_out(folder: Path) -> None:
    # As old checkpoints have them; here they are even wrong.
    key = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder, lambda t: t.update({key: torch.ones(8)}))
    assert_like_stock(folder)


# ---- code of a checkpoint


def test_an_auto_map_whose_code_is_elsewhere_is_left_alone(folder: Path) -> None:
    # As in checkpoints of types that Transformers has learned meanwhile.
    edit_json(
        folder / "config.json",
        lambda c: c.update(auto_map={"AutoConfig": "evil.Config", "AutoModel": "them/it--evil.M"}),
    )
    assert_like_stock(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("model_type", ["qwen3_moe", "a_model_of_tomorrow"])
def test_a_folder_with_code_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, model_type: str
) -> None:
    marker = tmp_path / "this was run"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    edit_json(folder / "config.json", lambda c: c.update(model_type=model_type))
    content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    content["auto_map"] = {"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.Tokenizer", None]}
    (folder / file).write_text(json.dumps(content))
    answers = io.StringIO("y\n" * 9)
    monkeypatch.setattr(sys, "stdin", answers)
    for load in (
        lambda: load_offloaded(folder),
        lambda: make_drafter(f"lm:{folder}"),
        lambda: make_drafter(f"eagle3:{folder}"),
        lambda: load_tokenizer(str(folder)),
    ):
        with pytest.raises(InvalidInputError, match=r"auto_map\.AutoConfig asks for .*evil\.py"):
            load()
    (folder / "evil.py").rename(tmp_path / "evil.py")
    if model_type != "qwen3_moe":
        for load in (lambda: load_offloaded(folder), lambda: make_drafter(f"lm:{folder}")):
            with pytest.raises(CheckpointError, match=r"no code of a checkpoint|recognize"):
                load()
    assert answers.tell() == 0
    assert not marker.exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_the_hub_are_refused(folder: Path, key: str) -> None:
    edit_json(folder / "config.json", lambda c: c.update({key: "somebody/kernel"}))
    with pytest.raises(CheckpointError, match="'somebody/kernel'; only eager, sdpa are used"):
        load_offloaded(folder)


def test_what_stock_passes_over_in_a_configuration_is_passed_over(folder: Path) -> None:
    leftovers = {"_attn_implementation_internal": "flash_attention_2", "use_cache": False}
    edit_json(folder / "config.json", lambda c: c.update(leftovers))
    assert_like_stock(folder)


def test_a_configuration_that_asks_for_tuples(folder: Path) -> None:
    # A leftover of training that stops stock models.
    edit_json(folder / "config.json", lambda c: c.update(return_dict=False))
    model = load_offloaded(folder, expert_cache=2)
    assert model.generate(tiny_prompt(), max_new_tokens=2, do_sample=False).shape == (1, 9)


# ---- damage


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "a/../../x", "a\0b"])
def test_shards_outside_the_folder_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    secret = "a secret in another file"
    (tmp_path / "other.safetensors").write_text(secret)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for load in (
        lambda: load_offloaded(folder),
        lambda: make_drafter(f"lm:{folder}"),
        lambda: make_drafter(f"eagle3:{folder}"),
    ):
        with pytest.raises(CheckpointError, match="outside the folder") as caught:
            load()
        assert "secret" not in str(caught.value)


def test_links_as_in_the_hub_s_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for i, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(i))
        file.symlink_to(Path("..") / "blobs" / str(i))
    assert_like_stock(folder)


#: Values of ``config.json`` that no model has.
DAMAGE: list[dict[str, Any]] = [
    {"num_local_experts": 2**40, "num_experts": 2**40},
    {"num_local_experts": -1e308},
    {"num_experts": -1},
    {"num_experts_per_tok": 0},
    {"num_experts_per_tok": 9},
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": []},
    {"hidden_size": 10**12},
    {"hidden_size": 0},
    {"vocab_size": [[160]]},
    {"num_attention_heads": 0},
    {"num_key_value_heads": 3},
    {"head_dim": 7},
    {"decoder_sparse_step": 0},
    {"mlp_only_layers": 3},
    {"hidden_act": "wobble"},
    {"hidden_act": {"a": 1}},
    {"rms_norm_eps": "small"},
    {"rms_norm_eps": -1.0},
    {"rope_parameters": 7},
    {"rope_parameters": {"rope_type": "spiral"}},
    {"rope_parameters": {"rope_type": "yarn", "factor": "x"}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}},
    {"dtype": "int5"},
    {"dtype": {"a": 1}},
    {"architectures": 3, "model_type": 3},
    {"model_type": None},
    {"layer_types": "abc"},
    {"sliding_window": "x", "use_sliding_window": True},
    {"quantization_config": {"quant_method": 5}},
    {"tie_word_embeddings": "maybe"},
]


@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_damaged_configurations_end_in_the_project_s_error(folder: Path, damage: dict) -> None:
    edit_json(folder / "config.json", lambda c: c.update(damage))
    with pytest.raises(InvalidInputError):
        load_offloaded(folder, expert_cache=2)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a": 1, "a": 2}', '{"n": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_json_that_no_reader_should_take(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError, match=file):
        load_offloaded(folder)
    with pytest.raises(CheckpointError, match=file):
        make_drafter(f"lm:{folder}")


@pytest.mark.parametrize(
    "content",
    [
        {"bos_token_id": [None], "pad_token_id": {"a": 1}},
        {"eos_token_id": "x"},
        {"eos_token_id": 10**30},
        {"temperature": "hot", "do_sample": True},
        {"top_k": -3, "do_sample": True},
    ],
)
def test_a_damaged_generation_config(folder: Path, content: dict) -> None:
    (folder / "generation_config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        load_offloaded(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 3}', "\0" * 99])
def test_a_damaged_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(InvalidInputError, match="no tokenizer"):
        load_tokenizer(str(folder))


# ---- arguments


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": torch.int8}, "dtype must be one of float32, bfloat16, float16, float64"),
        ({"dtype": torch.float8_e4m3fn}, "dtype must be one of"),
        ({"dtype": "int4"}, "dtype must be one of"),
        ({"dtype": 3}, "dtype must be one of"),
        ({"device": "meta"}, "not from 'meta'"),
        ({"device": "nowhere"}, "device must be"),
        ({"attn_implementation": "flash_attention_2"}, "only eager and sdpa take"),
        ({"attn_implementation": "flex_attention"}, "only eager and sdpa take"),
        ({"store": "tape"}, "store 'tape' is unknown"),
        ({"store": "pinned"}, "is for CUDA devices"),
        ({"cache_policy": "oracle"}, "oracle"),
        ({"expert_cache": 0}, "expert_cache 0 is too small"),
        ({"expert_cache": "0B"}, "is too small: the least is one expert per layer"),
        ({"expert_cache": "1kB"}, "is too small"),
        ({"expert_cache": 1.5}, "share"),
        ({"expert_cache": None}, "expert_cache None is not understood"),
        ({"scratch": -1}, "scratch"),
        ({"scratch": "many"}, "scratch"),
        ({"io_threads": 0}, "io_threads"),
        ({"link_bandwidth": 0}, "link_bandwidth"),
        ({"direct_io": "yes"}, "direct_io"),
        ({"revision": "main"}, "revision is for models of the hub"),
    ],
)
def test_bad_arguments(tiny_folder: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        load_offloaded(tiny_folder("qwen3_moe"), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_a_device_that_is_not_there(tiny_folder: Any) -> None:
    with pytest.raises(InvalidInputError, match="sees no CUDA device"):
        load_offloaded(tiny_folder("qwen3_moe"), device="cuda")


def test_attention_that_the_stock_model_lacks(tiny_folder: Any) -> None:
    with pytest.raises(InvalidInputError, match="gpt_oss model cannot be made so"):
        load_offloaded(tiny_folder("gpt_oss"), attn_implementation="sdpa")
    model = load_offloaded(tiny_folder("gpt_oss"))
    assert model.config._attn_implementation == "eager"


# ---- configurations


def test_a_folder_without_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load_offloaded(folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "no JSON"),
        ("{}", "cannot use"),
        ('{"model_type": "a_model_of_tomorrow"}', "a_model_of_tomorrow.*the families are"),
        ('{"model_type": "qwen3_moe", "hidden_size": "wide"}', "hidden_size must be a whole"),
    ],
)
def test_configurations_that_cannot_be_used(folder: Path, config: str, said: str) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=said):
        load_offloaded(folder)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model_type": "qwen3_next"}, InvalidInputError, "one chain"),
        ({"model_type": "qwen2_moe"}, InvalidInputError, "not in a way known here"),
        ({"model_type": "llama", "num_local_experts": 1}, InvalidInputError, "no experts"),
        ({"quantization_config": {"quant_method": "fp8"}}, CheckpointError, "converted to bf16"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, CheckpointError, "dequantize=True"),
        ({"dtype": "float8_e4m3fn"}, CheckpointError, "pass dtype"),
    ],
)
def test_models_that_are_not_served(
    folder: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    edit_json(folder / "config.json", lambda c: c.update(changes))
    with pytest.raises(error, match=said):
        load_offloaded(folder)


# ---- tensors beside the experts


def test_missing_tensors_are_named(folder: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.gate.weight"]

    edit_tensors(folder, drop)
    with pytest.raises(CheckpointError, match=r"lacks model\.layers\.1.*gate.*, model\.norm"):
        load_offloaded(folder)


def test_a_missing_buffer_is_named(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("deepseek_v3"), tmp_path / "x")
    key = "model.layers.1.mlp.gate.e_score_correction_bias"
    edit_tensors(folder, lambda t: t.pop(key))
    with pytest.raises(CheckpointError, match=f"lacks {key}"):
        load_offloaded(folder)


def test_leftover_tensors_are_named(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({f"model.extra.{n}": torch.ones(1) for n in range(7)}))
    with pytest.raises(CheckpointError, match=r"holds model\.extra\.0, .*4 and 2 more, for which"):
        load_offloaded(folder)


def test_a_head_that_is_missing_and_not_tied(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        load_offloaded(folder)


def test_both_of_a_tied_pair_missing(tiny_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(tiny_folder("qwen3_moe-tied"), tmp_path / "x")
    edit_tensors(folder, lambda t: t.pop("model.embed_tokens.weight"))
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight, model\.embed_tokens"):
        load_offloaded(folder)


def test_a_wrong_shape_is_named(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(47)}))
    with pytest.raises(CheckpointError, match=r"norm.* shape \[47\].*asks for \[48\]"):
        load_offloaded(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2])
def test_a_wrong_type_is_named(folder: Path, dtype: torch.dtype) -> None:
    key = "model.layers.0.self_attn.q_proj.weight"
    edit_tensors(folder, lambda t: t.update({key: t[key].to(dtype)}))
    with pytest.raises(CheckpointError, match=f"{key} in .* is stored as"):
        load_offloaded(folder)


# ---- files


def test_a_truncated_shard_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", tmp_path / "x", shards=3)
    last = shards_of(folder)[-1]
    last.write_bytes(last.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=f"{last.name} is truncated"):
        load_offloaded(folder)


def test_a_missing_shard_is_noticed_before_anything_runs(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", tmp_path / "x", shards=3)
    shards_of(folder)[1].unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        load_offloaded(folder)


def test_pickled_weights_alone_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickle format.*save_pretrained"):
        load_offloaded(folder)


def test_the_checkpoint_is_not_touched(tiny_folder: Any, tmp_path: Path) -> None:
    for layout in layouts("olmoe"):
        folder = copy_of(tiny_folder("olmoe", layout=layout, shards=2), tmp_path / layout)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        load_offloaded(folder, expert_cache=1).generate(tiny_prompt(), max_new_tokens=3)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_shipped_model_loads(capfd: pytest.CaptureFixture[str]) -> None:
    from specfit_runtime import demo_model

    model = load_offloaded(demo_model())
    offload = offload_of(model)
    assert (offload.n_layers, offload.n_experts, offload.top_k) == (8, 64, 4)
    assert tuple(offload.cache.slots) == (16,) * 8
    stored = json.loads((Path(demo_model()) / "config.json").read_text())
    assert model.config.hidden_size == stored["hidden_size"]
    assert capfd.readouterr().out == ""
