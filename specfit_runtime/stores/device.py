"""Which devices experts are offloaded from."""

from __future__ import annotations

from typing import Any

import torch

from specfit_opt.checks import shown

from ..errors import InvalidInputError


def checked_device(device: Any) -> torch.device:
    """Return ``device`` with its number, "cpu" or "cuda" and present.

    Raises
    ------
    InvalidInputError
        If it is no device, of another kind, or not there.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise InvalidInputError(
            f"device must be 'cpu' or a CUDA device such as 'cuda:0', got {shown(device)}"
        ) from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise InvalidInputError(
            f"experts can be offloaded from 'cpu' and 'cuda' devices, not from {device!r}"
        )
    if not torch.cuda.is_available():
        raise InvalidInputError(
            f"device {str(found)!r} is not there: torch sees no CUDA device; use device='cpu' (and "
            'store="ram" in place of "pinned")'
        )
    number = torch.cuda.current_device() if found.index is None else found.index
    if number >= torch.cuda.device_count():
        raise InvalidInputError(
            f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA device(s)"
        )
    return torch.device("cuda", number)
