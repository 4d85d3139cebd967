"""What an offloaded model refuses, because it would go wrong silently or obscurely.

The guards are attributes and hooks of the one model that was loaded: its classes stay as they are.
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .errors import InvalidInputError


class OfOneModel:
    """A base for what belongs to one model: it can be neither copied nor pickled."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be copied: files, threads and slots belong to one model; "
            "load it a second time with load_offloaded"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be pickled: its experts are not in it; pass on the "
            "checkpoint and load it with load_offloaded"
        )


class Unsaveable:
    """Stands for ``save_pretrained`` of a model that does not hold its experts."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse, whatever is asked for."""
        raise InvalidInputError(
            "an offloaded model cannot be saved: its experts are not in it; they are, unchanged, "
            f"in {self._source}"
        )


def guard_conversion(
    module: nn.Module, device: torch.device, dtype: torch.dtype, *, has_weights: bool
) -> None:
    """Let ``.to()`` and its like pass only where they change nothing.

    A converted model would hand hidden states of one type or device to experts of another.
    """
    probe = torch.empty(0, dtype=dtype, device=device)
    stock: Any = type(module)._apply
    # Not the module itself: a cycle would keep a dropped model until the garbage collector runs.
    reference = weakref.ref(module)

    def checked(fn: Any, recurse: bool = True) -> nn.Module:
        after: Tensor = fn(probe)
        if after.device != device or after.dtype != dtype:
            raise InvalidInputError(
                f"an offloaded model cannot be moved or converted (to {after.dtype} on "
                f"{after.device}): its experts stay {dtype} on {device}; load it again with "
                "load_offloaded(..., device=..., dtype=...)"
            )
        this = reference()
        assert this is not None  # it is being called
        if has_weights:
            stock(this, fn, recurse)
        # Else the parameters are on meta, where there is nothing to apply it to.
        return this

    module._apply = checked  # type: ignore[method-assign]
