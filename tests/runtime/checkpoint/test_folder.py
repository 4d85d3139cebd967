"""Folders and hub ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest

from specfit_runtime.checkpoint import checkpoint_folder
from specfit_runtime.errors import CheckpointError, InvalidInputError


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoint_folder(tmp_path) == tmp_path
    assert checkpoint_folder(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path.parent)
    assert checkpoint_folder(tmp_path.name).resolve() == tmp_path.resolve()


@pytest.mark.parametrize("model", ["/no/such/folder", "a/b/c", "./here", "", "a b"])
def test_what_is_no_folder_and_no_id(model: str) -> None:
    with pytest.raises(InvalidInputError, match=r"there is no folder|must be a folder"):
        checkpoint_folder(model)


@pytest.mark.parametrize("model", [None, 3, b"bytes"])
def test_what_is_no_name_at_all(model: Any) -> None:
    with pytest.raises(InvalidInputError, match="must be a folder or a hub model id"):
        checkpoint_folder(model)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="is a file; give the folder"):
        checkpoint_folder(tmp_path / "model.safetensors")


def test_a_revision_is_for_the_hub(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="revision is for models of the hub"):
        checkpoint_folder(tmp_path, revision="main")


def test_an_id_is_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert checkpoint_folder("owner/some-model", revision="v1") == tmp_path
    assert asked["name"] == "owner/some-model"
    assert asked["revision"] == "v1"
    # Weights in other formats, which lie in subfolders, are not fetched.
    assert asked["ignore_patterns"] == ["*/*"]


def test_being_offline_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"no folder 'owner/absent'.*go online once"):
        checkpoint_folder("owner/absent")
