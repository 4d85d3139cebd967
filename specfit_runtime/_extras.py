"""Says which extra is missing where a model cannot be run."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import MissingExtraError

_PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")


def require_runtime() -> None:
    """Check that what runs a model is installed.

    Raises
    ------
    MissingExtraError
        Names the package that is not there and the extra that brings it.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise MissingExtraError(package, "runtime")
