"""Checks of what a fetch is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ..checkpoint import ExpertIndex


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
