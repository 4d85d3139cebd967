"""What is learned outlasts the process, whole or not at all, and never stands in the way."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from tiny_models import tiny_checkpoint, tiny_prompt

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.state import StateKeeper
from specfit_runtime.state.folder import MOST_FILES, prune, state_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a tiny checkpoint."""
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("target"))


@pytest.fixture
def decode(folder):
    """Return ``decode(state)``: a text of a model that was just loaded, and who decoded it."""

    def run(state, expert_cache=4, drafter="prompt-lookup", new_tokens=24):
        model = load_offloaded(folder, expert_cache=expert_cache, dtype="float32")
        spec = SpecFit(drafter, state=state)
        prompt = tiny_prompt()
        with offload_of(model):
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=new_tokens,
                do_sample=False,
                custom_generate=spec,
            )
        return ids, spec

    return run


def test_a_second_process_begins_with_what_the_first_learned(decode, tmp_path) -> None:
    ids, first = decode(tmp_path)
    again, second = decode(tmp_path)
    assert torch.equal(ids, again)
    assert first.report.cost_source.endswith("corrected meanwhile")
    assert second.report.cost_source.endswith("in earlier runs")
    assert second.profile.to_dict() == first.profile.to_dict()
    assert len(list(tmp_path.iterdir())) == 1


def test_all_parts_come_back_as_they_were(decode, tmp_path) -> None:
    _, first = decode(tmp_path)
    kept = first._learned.keep()
    other = SpecFit("prompt-lookup")._memory(None, first.profile)
    other.restore(kept, first._offload)
    again = other.keep()
    assert again.acceptance == kept.acceptance
    assert again.policy == kept.policy
    for name, value in kept.costs.items():
        assert again.costs[name] == pytest.approx(value), name
    table, same = (
        # Experts that a token used as often as one another may have changed places.
        dict(zip(tokens.tolist(), np.sort(experts, axis=2).tolist(), strict=True))
        for tokens, experts in (kept.routing, again.routing)
    )
    assert table == same


def test_another_setup_has_a_file_of_its_own(decode, tmp_path) -> None:
    decode(tmp_path)
    _, spec = decode(tmp_path, expert_cache=3)
    assert spec.report.cost_source.endswith("corrected meanwhile")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_state_nothing_is_written(decode) -> None:
    decode(False)
    assert not state_folder().exists() or not list(state_folder().iterdir())


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "pickle"])
def test_a_damaged_file_is_left_out_with_a_warning_and_replaced(decode, tmp_path, damage) -> None:
    ids, _ = decode(tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    at = content.index(b'"acceptance"')
    path.write_bytes(
        {
            "empty": b"",
            "cut": content[:-100],
            "flipped": content[:at] + b'"acceptancf"' + content[at + 12 :],
            "pickle": b"\x80\x04.",
        }[damage]
    )
    with pytest.warns(UserWarning, match="earlier runs is not used.*" + path.name[:5]):
        again, spec = decode(tmp_path)
    assert torch.equal(ids, again)
    assert spec.report.cost_source.endswith("corrected meanwhile")
    _, spec = decode(tmp_path)
    assert spec.report.cost_source.endswith("in earlier runs")


def test_a_file_of_something_else_is_not_used(decode, tmp_path) -> None:
    decode(tmp_path)
    (path,) = tmp_path.iterdir()
    decode(tmp_path, expert_cache=3)
    (other,) = set(tmp_path.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    with pytest.warns(UserWarning, match="belongs to another model, drafter, store or machine"):
        decode(tmp_path)


def test_a_folder_that_cannot_be_written_is_said_once(decode, tmp_path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    with pytest.warns(UserWarning, match="is not kept for later runs") as seen:
        _, spec = decode(file / "below")
    assert len(seen) == 1
    assert spec.report.new_tokens == 24


def test_a_fixed_policy_keeps_nothing(folder, tmp_path) -> None:
    model = load_offloaded(folder, expert_cache=4, dtype="float32")
    with offload_of(model):
        spec = SpecFit("prompt-lookup", policy="chain-2", state=tmp_path)
        model.generate(tiny_prompt(), max_new_tokens=24, do_sample=False, custom_generate=spec)
    assert not list(tmp_path.iterdir())


def test_forget_begins_anew(folder, tmp_path) -> None:
    model = load_offloaded(folder, expert_cache=4, dtype="float32")
    with offload_of(model):
        spec = SpecFit("prompt-lookup", state=tmp_path)
        for restart in (False, True):
            if restart:
                spec.forget()
            model.generate(tiny_prompt(), max_new_tokens=24, do_sample=False, custom_generate=spec)
            assert spec.report.cost_source.endswith("corrected meanwhile")


@pytest.mark.parametrize("state", ["", None, 1, b"x"])
def test_what_names_no_folder_is_refused(state) -> None:
    with pytest.raises(InvalidInputError, match="state must be"):
        StateKeeper(state)


def test_the_folder_follows_the_convention(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "specfit"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", unset)
        assert state_folder() == tmp_path / "home" / ".local" / "state" / "specfit"


def test_the_oldest_files_go(tmp_path) -> None:
    paths = [tmp_path / f"{i:03d}.npz" for i in range(MOST_FILES + 3)]
    for i, path in enumerate(paths):
        path.write_text("")
        os.utime(path, (i, i))
    (tmp_path / "a note of somebody's").write_text("")
    prune(tmp_path)
    assert sorted(tmp_path.glob("*.npz")) == paths[3:]
    assert (tmp_path / "a note of somebody's").exists()
