"""Where the shipped model and drafter lie, and texts to try them on."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["demo_drafter", "demo_model", "demo_predictor", "demo_prompts"]

_DEMO = Path(__file__).resolve().parent / "demo"


def demo_model() -> Path:
    """Return the folder of the shipped model, a ``Qwen3MoeForCausalLM`` in Transformers' format.

    Returns
    -------
    pathlib.Path
        Holds ``config.json``, ``generation_config.json``, ``model.safetensors`` (bfloat16), the
        tokenizer, ``evaluation.json`` and a model card, ``README.md``.

    Raises
    ------
    FileNotFoundError
        If the package was installed without its data.

    Examples
    --------
    >>> from specfit_runtime import demo_model
    >>> sorted(file.name for file in demo_model().glob("*.safetensors"))
    ['model.safetensors']
    """
    return _folder("model")


def demo_drafter() -> Path:
    """Return the folder of the shipped drafter, an EAGLE-3 head for `demo_model`.

    Returns
    -------
    pathlib.Path
        Holds ``config.json``, ``model.safetensors`` (bfloat16, in the names of SpecForge and
        SGLang), ``evaluation.json`` and a model card, ``README.md``.

    Raises
    ------
    FileNotFoundError
        As `demo_model`.
    """
    return _folder("drafter")


def demo_predictor() -> Path:
    """Return the folder of the shipped predictor of routing, for `demo_model` and `demo_drafter`.

    Returns
    -------
    pathlib.Path
        Holds ``config.json``, ``model.safetensors`` (float16) and a card, ``README.md``; for
        ``predictor=f"learned:{demo_predictor()}"``.

    Raises
    ------
    FileNotFoundError
        As `demo_model`.
    """
    return _folder("predictor")


def demo_prompts() -> tuple[str, ...]:
    """Return beginnings of texts of the kinds that `demo_model` was trained on, but never saw.

    Returns
    -------
    tuple of str
        Public-domain texts: a novel, a play, a country's description, a technical document.

    Raises
    ------
    FileNotFoundError
        If the package was installed without its data.

    Examples
    --------
    >>> from specfit_runtime.demo_files import demo_prompts
    >>> len(demo_prompts())
    4
    """
    lines = (_DEMO / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["prompt"] for line in lines)


def _folder(name: str) -> Path:
    folder = _DEMO / name
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"{folder} holds no model.safetensors: the package data is missing;"
            " reinstall specfit, or in a checkout run the recipes in tools"
        )
    return folder
