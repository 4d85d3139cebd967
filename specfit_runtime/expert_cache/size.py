"""Cache sizes as people write them: slots, a share of the experts, or bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from specfit_opt.checks import shown

from ..errors import InvalidInputError

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_NUMBER = r"(?P<number>\d{1,18}(?:\.\d*)?|\.\d+)"
_SLOTS = re.compile(r"\d{1,18}")
_SHARE = re.compile(rf"{_NUMBER}\s*%")
_FRACTION = re.compile(r"(?P<number>\d{1,18}\.\d*|\.\d+)")
_BYTES = re.compile(rf"{_NUMBER}\s*(?P<unit>[A-Za-z]+)")
_FORMS = (
    'a share of the experts (0.25 or "25%"), slots per layer (16), or bytes for all layers '
    'together ("8GiB", "500MB")'
)

# Keeps 12.5 % of 64 from becoming 7 by rounding.
_TOLERANCE = 1e-9


def slots_per_layer(
    size: float | int | str, *, n_experts: int, record_bytes: Sequence[int], scratch: int
) -> tuple[int, ...]:
    """Return how many experts each layer may keep in fast memory.

    Parameters
    ----------
    size : float, int or str
        A share of each layer's experts, rounded down: a float in (0, 1], ``"25%"`` or ``"0.25"``.
        Slots per layer: an int or ``"16"``. Bytes of all slabs together, the scratch slab
        included: ``"8GiB"``, ``"500MB"``; every layer gets the same number of slots, and the first
        layers one more as far as the rest goes. More than all experts is cut to all of them.
    n_experts : int
        Experts per layer.
    record_bytes : sequence of int, shape (L,)
        Bytes of one slot of each layer.
    scratch : int
        Slots of the scratch slab, each as large as the largest record. Shares and slots per layer
        come on top of it.

    Returns
    -------
    tuple of int, shape (L,)
        From 1 to ``n_experts``.

    Raises
    ------
    InvalidInputError
        If the size is not understood, not positive, or does not give every layer one slot; the
        message says how many bytes would.
    """
    sizes = [int(b) for b in record_bytes]
    extra = scratch * max(sizes, default=0)
    least = f"the least is one expert per layer, {sum(sizes) + extra} bytes with the scratch slab"
    if isinstance(size, (bool, np.bool_)):
        raise InvalidInputError(f"expert_cache {size!r} is not understood; give {_FORMS}")
    if isinstance(size, (int, np.integer)):
        return _equal(int(size), size, n_experts, sizes, least)
    if isinstance(size, (float, np.floating)):
        return _equal(_share(float(size), size, n_experts), size, n_experts, sizes, least)
    if not isinstance(size, str):
        raise InvalidInputError(f"expert_cache {size!r} is not understood; give {_FORMS}")
    text = size.strip()
    if _SLOTS.fullmatch(text):
        return _equal(int(text), size, n_experts, sizes, least)
    if share := _SHARE.fullmatch(text):
        percent = float(share["number"])
        return _equal(_share(percent / 100.0, size, n_experts), size, n_experts, sizes, least)
    if _FRACTION.fullmatch(text):
        return _equal(_share(float(text), size, n_experts), size, n_experts, sizes, least)
    amount = _BYTES.fullmatch(text)
    if amount is None:
        raise InvalidInputError(f"expert_cache {shown(size)} is not understood; give {_FORMS}")
    unit = _UNITS.get(amount["unit"].upper())
    if unit is None:
        raise InvalidInputError(
            f"expert_cache {shown(size)}: unit {amount['unit']!r} is unknown; use one of "
            "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    room = math.floor(Fraction(amount["number"]) * unit) - extra
    slots = min(room // sum(sizes), n_experts)
    if slots < 1:
        raise InvalidInputError(f"expert_cache {shown(size)} is too small: {least}; give more")
    rest = room - slots * sum(sizes)
    result = []
    for n_bytes in sizes:
        more = slots < n_experts and n_bytes <= rest
        rest -= n_bytes if more else 0
        result.append(slots + more)
    return tuple(result)


def default_scratch(n_experts: int, top_k: int) -> int:
    """Return the slots of a scratch slab that is neither large nor a bottleneck.

    Twice the experts of a token: while one half is computed with, the other fills. At least 2, at
    most all experts.
    """
    return min(n_experts, max(2, 2 * top_k))


def _share(share: float, size: Any, n_experts: int) -> int:
    if not 0.0 < share <= 1.0:
        hint = ""
        if share > 1.0:
            hint = "; slots per layer are written without a point, such as 16"
        raise InvalidInputError(
            f"expert_cache {shown(size)}: a share of the experts must be above 0 and at most "
            f"1{hint}"
        )
    return math.floor(share * n_experts + _TOLERANCE)


def _equal(
    slots: int, size: Any, n_experts: int, sizes: Sequence[int], least: str
) -> tuple[int, ...]:
    if slots < 1:
        raise InvalidInputError(f"expert_cache {shown(size)} is too small: {least}; give more")
    return (min(slots, n_experts),) * len(sizes)
