"""Allocates the fast memory of an expert cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specfit_opt.checks import Whole

from ..errors import InvalidInputError
from ..stores.host_memory import available_bytes


def checked_slots(slots: Sequence[int], n_layers: int, n_experts: int) -> tuple[int, ...]:
    """Return the slots of every layer.

    Raises
    ------
    InvalidInputError
        If they are not ``n_layers`` whole numbers from 1 to ``n_experts``.
    """
    counts = tuple(slots)
    if len(counts) != n_layers:
        raise InvalidInputError(
            f"slots are given for {len(counts)} layers, the model has {n_layers} MoE layers"
        )
    return tuple(Whole(1, n_experts)(n, f"slots[{layer}]") for layer, n in enumerate(counts))


def checked_scratch(scratch: Any, slots: Sequence[int], n_experts: int) -> int:
    """Return the slots of the scratch slab.

    Raises
    ------
    InvalidInputError
        If they are no whole number, or 0 where a layer has fewer slots than experts.
    """
    least = 0 if all(n == n_experts for n in slots) else 1
    count: int = Whole(least)(scratch, "scratch")
    return count


def allocate(
    shapes: Sequence[tuple[int, int]], dtypes: Sequence[torch.dtype], device: torch.device
) -> list[torch.Tensor]:
    """Return slabs of these shapes, (slots, elements), not filled.

    Raises
    ------
    InvalidInputError
        If they do not fit into the memory that is available.
    """
    total = sum(n * width * d.itemsize for (n, width), d in zip(shapes, dtypes, strict=True))
    # The system would hand out memory that is not there, and end the process when it is filled.
    free = available_bytes() if device.type == "cpu" else None
    try:
        if free is not None and total > free:
            raise RuntimeError(f"{free} are available")
        # An inference tensor could not be written to outside of inference mode.
        with torch.inference_mode(False):
            return [
                torch.empty(shape, dtype=dtype, device=device)
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
    except RuntimeError as error:
        raise InvalidInputError(
            f"an expert cache of {total} bytes, the scratch slab included, does not fit into the "
            f"memory of {device}; give a smaller expert_cache ({str(error).splitlines()[0]})"
        ) from error
