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
        if not _is_there(package):
            raise MissingExtraError(package, "runtime")


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:  # a finder may refuse instead of finding nothing
        return False
