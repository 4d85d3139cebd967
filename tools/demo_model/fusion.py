"""Fuse chains of elementwise operations with torch.compile, where it is asked for.

On a CPU such chains cost more than the matrix products between them. Compiling takes a minute, so
the smoke run leaves it off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

__all__ = ["fuse", "fusible"]

_enabled = False
_F = TypeVar("_F", bound=Callable[..., Any])


def fuse(enabled: bool) -> None:
    """Turn compilation of the functions marked `fusible` on or off."""
    global _enabled
    _enabled = enabled


def fusible(function: _F) -> _F:
    """Mark a function of tensors for compilation; sizes may change from call to call."""
    compiled = torch.compile(function, dynamic=None, fullgraph=True)

    @wraps(function)
    def call(*args: Any) -> Any:
        return compiled(*args) if _enabled else function(*args)

    return call  # type: ignore[return-value]
