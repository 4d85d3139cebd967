"""Which models are served, and what is said of the others."""

from __future__ import annotations

import pytest
import tiny_models
from transformers import AutoConfig, PretrainedConfig

from specfit_runtime.errors import CheckpointError, InvalidInputError
from specfit_runtime.families import FAMILIES, family_for


def test_the_registry_and_the_tiny_models_name_the_same_families() -> None:
    assert tuple(FAMILIES) == tiny_models.MODEL_TYPES
    assert all(name == family.name for name, family in FAMILIES.items())


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_found(model_type: str) -> None:
    config = tiny_models.tiny_config(model_type)
    family = family_for(config)
    assert family is FAMILIES[model_type]
    assert family.n_experts(config) == 8
    assert family.top_k(config) == 2


def test_only_sparse_layers_count() -> None:
    dense_first = tiny_models.tiny_config("deepseek_v3")
    assert FAMILIES["deepseek_v3"].moe_layers(dense_first) == (1, 2)
    named = tiny_models.tiny_config("qwen3_moe", mlp_only_layers=[1])
    assert FAMILIES["qwen3_moe"].moe_layers(named) == (0, 2)
    every_second = tiny_models.tiny_config("qwen3_moe", decoder_sparse_step=2, num_hidden_layers=4)
    assert FAMILIES["qwen3_moe"].moe_layers(every_second) == (1, 3)


@pytest.mark.parametrize("model_type", ["qwen3_next", "jamba", "nemotron_h", "lfm2_moe"])
def test_recurrent_families_are_refused_with_the_reason(model_type: str) -> None:
    with pytest.raises(InvalidInputError, match=r"one chain.*tree cannot be verified") as error:
        family_for(AutoConfig.for_model(model_type))
    assert model_type in str(error.value)
    assert "qwen3_moe, mixtral, olmoe, deepseek_v3, glm4_moe, gpt_oss" in str(error.value)


def test_recurrent_layers_are_seen_under_any_name() -> None:
    class Config(PretrainedConfig):
        model_type = "something_new"

    config = Config(num_experts=8)
    config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(InvalidInputError, match="one chain"):
        family_for(config)


# The last three give the number of experts in a part of the configuration.
@pytest.mark.parametrize(
    "model_type", ["qwen2_moe", "phimoe", "minimax_m2", "qwen3_vl_moe", "dbrx", "qwen3_omni_moe"]
)
def test_other_moe_families_are_told_which_are_served(model_type: str) -> None:
    with pytest.raises(InvalidInputError, match="has experts, but not in a way known") as error:
        family_for(AutoConfig.for_model(model_type))
    assert all(name in str(error.value) for name in FAMILIES)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_dense_models_are_refused(model_type: str) -> None:
    with pytest.raises(InvalidInputError, match=r"no experts to offload.*from_pretrained"):
        family_for(AutoConfig.for_model(model_type))


def test_a_model_without_a_sparse_layer_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no layer with experts"):
        family_for(tiny_models.tiny_config("qwen3_moe", mlp_only_layers=[0, 1, 2]))


@pytest.mark.parametrize(
    ("model_type", "method", "instead"),
    [
        ("deepseek_v3", "fp8", "converted to bf16"),
        ("gpt_oss", "mxfp4", "dequantize=True"),
        ("qwen3_moe", "awq", "without quantization_config"),
        ("mixtral", "gptq", "without quantization_config"),
    ],
)
def test_quantised_checkpoints_are_refused_with_what_to_load(
    model_type: str, method: str, instead: str
) -> None:
    config = tiny_models.tiny_config(model_type)
    config.quantization_config = {"quant_method": method}
    with pytest.raises(CheckpointError, match=f"quant_method '{method}'.*{instead}"):
        family_for(config)


def test_quantisation_given_as_an_object_is_seen() -> None:
    from transformers import FineGrainedFP8Config

    config = tiny_models.tiny_config("qwen3_moe")
    config.quantization_config = FineGrainedFP8Config()
    with pytest.raises(CheckpointError, match="quant_method 'fp8'"):
        family_for(config)
