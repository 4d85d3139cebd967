"""Write the drafter in the files that SpecForge's and SGLang's loaders expect."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from .export import restore
from .train_drafter import restore_drafter

__all__ = ["export_drafter"]


def export_drafter(folder: Path, target: Path) -> None:
    """Write config.json and model.safetensors of ``drafter.pt`` in `folder` to `target`."""
    from safetensors.torch import save_file

    head = restore_drafter(folder / "drafter.pt", restore(folder / "target.pt", torch.float32))
    target.mkdir(parents=True, exist_ok=True)
    save_file(head.state_for_export(), target / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(head.config(), indent=2) + "\n"
    (target / "config.json").write_text(text, encoding="utf-8")
