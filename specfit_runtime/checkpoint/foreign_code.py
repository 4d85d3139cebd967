"""Refuses folders that bring code along: nothing of a checkpoint ever runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specfit_opt.checks import shown
from specfit_opt.files.strict_json import read_json

from ..errors import CheckpointError

__all__ = ["refuse_code"]

#: Files in which a folder may name classes of its own.
_NAMING = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
)
#: Keys by which a configuration chooses what computes, and what may be chosen. Other values can
#: name a repository of the hub, whose kernels Transformers would fetch and run.
_CHOICES = {
    "attn_implementation": (None, "eager", "sdpa"),
    "experts_implementation": (None, "eager", "grouped_mm", "batched_mm"),
}


def refuse_code(folder: Path) -> None:
    """Check that a checkpoint folder asks for no code but Transformers' own.

    An ``auto_map`` whose Python file is not in the folder is let pass: Transformers, which is never
    allowed to run it, uses its own class where it has one, and refuses where it has none.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    CheckpointError
        If a configuration names a Python file of the folder or a kernel of the hub, or cannot be
        read.
    """
    for name in _NAMING:
        path = folder / name
        if not path.exists():
            continue
        content = read_json(path, error=CheckpointError)
        for key, target in _classes(content.get("auto_map")):
            file = f"{target.rpartition('--')[2].split('.')[0]}.py"
            if (folder / file).exists():
                raise CheckpointError(
                    f"{path}: auto_map.{key} asks for {shown(target)} in {file}, and no code of a "
                    "checkpoint is run. If Transformers knows the model without it, take auto_map "
                    f"out of {name} or {file} out of the folder; otherwise load a checkpoint of a "
                    "type that Transformers knows"
                )
        if name == "config.json":
            _refuse_kernels(path, content)


def _classes(auto_map: Any) -> Iterator[tuple[str, str]]:
    """Yield what an ``auto_map`` names: classes by kind, or lists of them."""
    entries = auto_map.items() if isinstance(auto_map, Mapping) else [("", auto_map)]
    for key, value in entries:
        for target in value if isinstance(value, list) else [value]:
            if isinstance(target, str):
                yield str(key), target


def _refuse_kernels(path: Path, content: Mapping[str, Any], place: str = "") -> None:
    for key, value in content.items():
        allowed = _CHOICES.get(key.removeprefix("_"))
        if allowed is not None and value not in allowed:
            names = ", ".join(str(name) for name in allowed if name)
            raise CheckpointError(
                f"{path}: {place}{key} is {shown(value)}; only {names} are used, as others may be "
                "code from elsewhere: take the key out"
            )
        if isinstance(value, Mapping):
            _refuse_kernels(path, value, f"{place}{key}.")
