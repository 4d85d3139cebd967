"""Cache sizes as people write them: slots, a share of the experts, or bytes."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..checks import shown
from ..errors import InvalidInputError

_UNITS = {
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2.0**10,
    "MIB": 2.0**20,
    "GIB": 2.0**30,
    "TIB": 2.0**40,
}
_NUMBER = r"(?P<number>\d+(?:\.\d*)?|\.\d+)"
_SLOTS = re.compile(r"\d{1,18}")
_SHARE = re.compile(rf"{_NUMBER}\s*%")
_BYTES = re.compile(rf"{_NUMBER}\s*(?P<unit>[A-Za-z]+)")
_FORMS = 'slots per layer (32), a share of the experts ("25%") or bytes ("8GB", "8GiB")'


def slots_of(
    size: int | str, n_experts: int, layer_bytes: NDArray[np.float64], layer_repeat: int = 1
) -> int:
    """Return the experts per layer that a cache of ``size`` holds.

    Parameters
    ----------
    size : int or str
        Slots per layer (``32``), a share of each layer's experts (``"25%"``, rounded down), or
        bytes for all layers together (``"8GB"``, ``"512MiB"``), divided so that every layer gets
        the same number of slots, rounded down.
    n_experts : int
        Experts per layer.
    layer_bytes : ndarray of float64, shape (L,)
        Bytes of one expert of each recorded layer.
    layer_repeat : int
        Layers that each recorded one stands for.

    Returns
    -------
    int
        At most ``n_experts``: a larger share or budget of bytes holds all of them.

    Raises
    ------
    InvalidInputError
        If the text has another form, names more slots than there are experts, or not even one
        expert per layer fits. (Slots may be 0, when written so.)
    """
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        return _checked_slots(int(size), n_experts)
    if not isinstance(size, str):
        raise InvalidInputError(f"cache size {size!r} is not understood; give {_FORMS}")
    text = size.strip()
    if _SLOTS.fullmatch(text):
        return _checked_slots(int(text), n_experts)
    if share := _SHARE.fullmatch(text):
        percent = float(share["number"])
        if percent > 100.0:
            raise InvalidInputError(f"cache size {shown(size)} exceeds 100% of the experts")
        # The tolerance keeps 12.5% of 64 from becoming 7 by rounding.
        slots = int(percent / 100.0 * n_experts + 1e-9)
    elif amount := _BYTES.fullmatch(text):
        unit = _UNITS.get(amount["unit"].upper())
        if unit is None:
            raise InvalidInputError(
                f"cache size {shown(size)}: unit {amount['unit']!r} is unknown; use one of "
                "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
            )
        per_slot = float(np.sum(layer_bytes)) * layer_repeat
        slots = int(min(float(amount["number"]) * unit / per_slot + 1e-9, n_experts))
    else:
        raise InvalidInputError(f"cache size {shown(size)} is not understood; give {_FORMS}")
    if slots < 1:
        raise InvalidInputError(
            f"a cache of {shown(size)} does not hold one expert per layer; give more, or 0 slots "
            "to replay without a cache"
        )
    return slots


def _checked_slots(slots: int, n_experts: int) -> int:
    if not 0 <= slots <= n_experts:
        raise InvalidInputError(
            f"{slots} slots per layer do not fit {n_experts} experts; give 0 to {n_experts}, a "
            'share such as "25%", or bytes such as "8GB"'
        )
    return slots
