"""Weights are computed with where they are aligned, and nothing depends on it but last bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from edit_checkpoint import copy_of
from rounding import assert_no_near_ties, assert_same_to_rounding
from safetensors.torch import load_file
from stock_models import load_stock, shift_weights, shifted
from tiny_drafters import tiny_eagle3, tiny_lm
from tiny_models import MODEL_TYPES, tiny_model, tiny_prompt
from transformers import AutoModelForCausalLM

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.alignment import ALIGNMENT, align_weights, aligned
from specfit_runtime.drafters import CausalLmDrafter, Eagle3Drafter
from specfit_runtime.expert_cache import slabs
from specfit_runtime.predictors.routing_network import NetworkShape, RoutingNetwork
from specfit_runtime.predictors.routing_network_files import load_network, save_network

NEW_TOKENS = 24


def at_odd_places(folder: Path) -> Path:
    """Move the tensors of ``model.safetensors`` to 8 bytes behind a multiple of 64."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    # The format allows blanks behind the header's JSON.
    header = content[8:start] + b" " * (-start % ALIGNMENT + 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[start:])
    # As they lie in the file, so they lie in memory.
    assert all(t.data_ptr() % 16 for t in load_file(path).values() if not t.nbytes % 16)
    return folder


def places(tensors: Any) -> set[int]:
    found = {tensor.data_ptr() % ALIGNMENT for tensor in tensors}
    assert found
    return found


class TestCopies:
    def test_a_shifted_tensor_is_copied_and_another_is_not(self) -> None:
        whole = torch.randn(5, 7)
        assert aligned(whole) is whole
        odd = shifted(whole)
        assert places([odd]) == {4}
        assert torch.equal(odd, whole)
        copy = aligned(odd)
        assert places([copy]) == {0}
        assert torch.equal(copy, whole)

    def test_a_module_keeps_what_it_was(self) -> None:
        model = tiny_model("qwen3_moe-tied")
        before = {name: t.clone() for name, t in model.state_dict().items()}
        assert places(shift_weights(model).parameters()) != {0}
        assert align_weights(model) is model
        assert places((*model.parameters(), *model.buffers())) == {0}
        assert model.lm_head.weight is model.model.embed_tokens.weight
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, before[name]), name

    def test_what_is_on_meta_stays_there(self) -> None:
        assert align_weights(torch.nn.Linear(2, 3, device="meta")).weight.is_meta


class TestWhatIsLoaded:
    """Out of files in which everything lies at an odd place."""

    def test_an_offloaded_model(self, tiny_folder: Any, tmp_path: Path) -> None:
        folder = at_odd_places(copy_of(tiny_folder("gpt_oss"), tmp_path / "it"))
        model = load_offloaded(folder, expert_cache=2)
        with offload_of(model):
            held = [t for t in (*model.parameters(), *model.buffers()) if not t.is_meta]
            assert places(held) == {0}

    def test_a_language_model_as_drafter(self, tmp_path: Path) -> None:
        drafter = CausalLmDrafter(at_odd_places(tiny_lm(tmp_path, 160)))
        drafter.bind(tiny_model("qwen3_moe"))
        assert places((*drafter._model.parameters(), *drafter._model.buffers())) == {0}

    def test_an_eagle3_head(self, tmp_path: Path) -> None:
        target = tiny_model("qwen3_moe")
        drafter = Eagle3Drafter(at_odd_places(tiny_eagle3(tmp_path, target.config)))
        drafter.bind(target)
        held = [
            tensor
            for value in vars(drafter._head).values()
            for tensor in (value if isinstance(value, tuple) else (value,))
            if isinstance(tensor, torch.Tensor)
        ]
        assert len(held) > 8
        assert places(held) == {0}

    def test_a_routing_network(self, tmp_path: Path) -> None:
        network = RoutingNetwork(NetworkShape(2, 8, 2, 160, 48))
        save_network(tmp_path / "network", network, card="")
        found, _ = load_network(at_odd_places(tmp_path / "network"))
        assert places(found.parameters()) == {0}


class TestShiftedByOneFloat:
    """What is promised holds for weights at places that no kernel likes, too."""

    @pytest.fixture
    def shifting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Shift the slots that experts are computed from."""
        allocate = slabs.allocate
        monkeypatch.setattr(
            slabs, "allocate", lambda *args: [shifted(slab) for slab in allocate(*args)]
        )

    @pytest.mark.parametrize("model_type", MODEL_TYPES)
    @pytest.mark.usefixtures("shifting")
    def test_scores_and_tokens_are_those_of_stock(self, tiny_folder: Any, model_type: str) -> None:
        folder = tiny_folder(model_type)
        reference = load_stock(folder)
        options = {
            "max_new_tokens": NEW_TOKENS,
            "do_sample": False,
            "return_dict_in_generate": True,
            "output_logits": True,
        }
        expected = reference.generate(tiny_prompt(), **options)
        assert_no_near_ties(torch.cat(expected.logits))

        stock = shift_weights(AutoModelForCausalLM.from_pretrained(folder))
        offloaded = shift_weights(load_offloaded(folder, expert_cache=2))
        draft = shift_weights(AutoModelForCausalLM.from_pretrained(folder))
        with offload_of(offloaded) as offload:
            assert places(layer.slab for layer in offload.cache._slots.layers) == {4}
            for model in (stock, offloaded):
                assert places(p for p in model.parameters() if not p.is_meta) == {4}
                found = model.generate(tiny_prompt(), **options)
                assert torch.equal(found.sequences, expected.sequences)
                for one, other in zip(found.logits, expected.logits, strict=True):
                    assert_same_to_rounding(one, other)
            spec = SpecFit(CausalLmDrafter(draft), policy="eagle-16")
            found = offloaded.generate(tiny_prompt(), custom_generate=spec, **options)
            assert torch.equal(found.sequences, expected.sequences)
            for one, other in zip(found.logits, expected.logits, strict=True):
                assert_same_to_rounding(one, other)
            assert spec.report.totals.tokens_per_pass > 2  # by the shifted model's drafts
