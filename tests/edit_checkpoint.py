"""Changes checkpoint folders in the ways in which they go wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def copy_of(folder: Path, to: Path) -> Path:
    """Return a copy that may be changed."""
    return Path(shutil.copytree(folder, to))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Let ``edit`` change the dictionary of ``model.safetensors`` in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_json(path: Path, edit: Callable[[dict], None]) -> None:
    """Let ``edit`` change the object in a JSON file in place."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))
