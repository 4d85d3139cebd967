"""Checks of what a fetch is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specfit_opt.checks import shown

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


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


def check_fetch(
    index: ExpertIndex,
    device: torch.device,
    layer: int,
    expert: int,
    out: torch.Tensor,
    after: torch.cuda.Event | None,
) -> None:
    """Check the arguments of a fetch.

    Raises
    ------
    InvalidInputError
        If an argument is not as :meth:`ExpertStore.fetch` says.
    """
    if not 0 <= layer < index.n_layers:
        raise InvalidInputError(
            f"layer {layer} is not there: the model has MoE layers 0 to {index.n_layers - 1}"
        )
    if not 0 <= expert < index.n_experts:
        raise InvalidInputError(
            f"expert {expert} is not there: a layer has experts 0 to {index.n_experts - 1}"
        )
    layout = index.layouts[layer]
    if (
        out.shape != (layout.n_elements,)
        or out.dtype != layout.dtype
        or out.device != device
        or not out.is_contiguous()
    ):
        raise InvalidInputError(
            f"a slot for layer {layer} must be contiguous, of shape ({layout.n_elements},), "
            f"{layout.dtype} and on {device}; got shape {tuple(out.shape)}, {out.dtype} on "
            f"{out.device}"
        )
    if after is not None and device.type != "cuda":
        raise InvalidInputError(f"after must be None on {device}: only CUDA copies wait for events")
