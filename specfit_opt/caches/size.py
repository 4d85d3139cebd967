"""Cache sizes as people write them: slots, a share of the experts, or bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import shown
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
_FRACTION = re.compile(r"\d{1,18}\.\d*|\.\d+")
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
    """Return how many experts each layer of an expert cache may keep in fast memory.

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
    form, amount = _read(size, "expert_cache")
    if form == "bytes":
        room = math.floor(amount) - extra
        slots = min(room // sum(sizes), n_experts)
    else:
        slots = min(_equal(form, amount, n_experts), n_experts)
        room = slots * sum(sizes)
    if slots < 1:
        least = sum(sizes) + extra
        raise InvalidInputError(
            f"expert_cache {shown(size)} is too small: the least is one expert per layer, {least} "
            "bytes with the scratch slab; give more"
        )
    rest = room - slots * sum(sizes)
    result = []
    for n_bytes in sizes:
        more = slots < n_experts and n_bytes <= rest
        rest -= n_bytes if more else 0
        result.append(slots + more)
    return tuple(result)


def slots_of(
    size: float | int | str, n_experts: int, layer_bytes: NDArray[np.float64], layer_repeat: int = 1
) -> int:
    """Return the experts per layer that a cache of ``size`` keeps in a replay.

    Sizes are written as for :func:`~specfit_opt.caches.slots_per_layer`. Unlike there, all layers
    get the same number of slots, since recorded layers stand for others; nothing is taken off for a
    scratch slab; there may be 0 slots, when written so; and more slots than experts are an error,
    since the size names a row of a table.

    Parameters
    ----------
    size : float, int or str
        Slots per layer (``32``), a share of each layer's experts (``"25%"``, rounded down), or
        bytes for all layers together (``"8GB"``, ``"512MiB"``, rounded down).
    n_experts : int
        Experts per layer.
    layer_bytes : ndarray of float64, shape (L,)
        Bytes of one expert of each recorded layer.
    layer_repeat : int
        Layers that each recorded one stands for.

    Returns
    -------
    int
        From 0 to ``n_experts``: more bytes than all of them have hold all.

    Raises
    ------
    InvalidInputError
        If the size is not understood, names more than all experts, or not even one expert per layer
        fits.
    """
    form, amount = _read(size, "cache size")
    if form == "slots":
        if not 0 <= amount <= n_experts:
            raise InvalidInputError(
                f"{int(amount)} slots per layer do not fit {n_experts} experts; give 0 to "
                f'{n_experts}, a share such as "25%", or bytes such as "8GB"'
            )
        return int(amount)
    least = int(np.sum(layer_bytes)) * layer_repeat
    if form == "bytes":
        slots = min(math.floor(amount / least), n_experts)
    else:
        slots = _equal(form, amount, n_experts)
    if slots < 1:
        raise InvalidInputError(
            f"cache size {shown(size)} does not hold one expert per layer, which are {least} "
            "bytes; give more, or 0 slots to replay without a cache"
        )
    return slots


def _read(size: Any, name: str) -> tuple[str, Fraction]:
    """Return in which form a size is given ("slots", "share" or "bytes"), and the number."""
    text = size.strip() if isinstance(size, str) else ""
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        return "slots", Fraction(int(size))
    if _SLOTS.fullmatch(text):
        return "slots", Fraction(text)
    if isinstance(size, (float, np.floating)):
        return "share", _share(float(size), size, name)
    if _FRACTION.fullmatch(text):
        return "share", _share(float(text), size, name)
    if share := _SHARE.fullmatch(text):
        return "share", _share(float(share["number"]) / 100.0, size, name)
    amount = _BYTES.fullmatch(text)
    if amount is None:
        said = shown(size) if isinstance(size, str) else repr(size)
        raise InvalidInputError(f"{name} {said} is not understood; give {_FORMS}")
    unit = _UNITS.get(amount["unit"].upper())
    if unit is None:
        raise InvalidInputError(
            f"{name} {shown(size)}: unit {amount['unit']!r} is unknown; use one of "
            "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        )
    return "bytes", Fraction(amount["number"]) * unit


def _share(share: float, size: Any, name: str) -> Fraction:
    if not 0.0 < share <= 1.0:
        hint = "; slots per layer are written without a point, such as 16" if share > 1.0 else ""
        raise InvalidInputError(
            f"{name} {shown(size)}: a share of the experts must be above 0 and at most 1{hint}"
        )
    return Fraction(share)


def _equal(form: str, amount: Fraction, n_experts: int) -> int:
    """Return the slots of every layer for a number of slots or a share."""
    return int(amount) if form == "slots" else math.floor(float(amount) * n_experts + _TOLERANCE)
