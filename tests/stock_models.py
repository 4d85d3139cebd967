"""Stock models as references, and what would happen with their weights elsewhere in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specfit_runtime.alignment import align_weights


def load_stock(folder: Path, **options: Any) -> Any:
    """Return the stock model of a folder, its weights aligned.

    `from_pretrained` leaves them mapped where the file has them, at multiples of 8 bytes, where
    some kernels give a product other last bits than at the multiples of 64 of an offloaded model.
    """
    return align_weights(
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **options)
    )


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that starts one element behind the start of its buffer."""
    copy = tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape)
    return copy.copy_(tensor)


def shift_weights(module: Any) -> Any:
    """Shift every parameter and buffer of a module that is in memory, and return the module."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not tensor.is_meta:
            tensor.data = shifted(tensor.data)
    return module
