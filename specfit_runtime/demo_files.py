"""Where the shipped model and drafter lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["demo_drafter", "demo_model"]

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
        If the package was installed without its data.

    Examples
    --------
    >>> from specfit_runtime import demo_drafter
    >>> (demo_drafter() / "config.json").exists()
    True
    """
    return _folder("drafter")


def _folder(name: str) -> Path:
    folder = _DEMO / name
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"{folder} holds no model.safetensors: the package data is missing;"
            " reinstall specfit, or in a checkout run the recipe in tools/demo_model"
        )
    return folder
