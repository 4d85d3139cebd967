"""Cache sizes as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from specfit_opt.errors import InvalidInputError
from specfit_opt.replay import slots_of

LAYERS = np.array([1e6, 3e6])  # 4 MB for one slot in each layer


@pytest.mark.parametrize(
    ("size", "slots"),
    [
        (0, 0),
        (16, 16),
        (np.int64(7), 7),
        ("16", 16),
        (" 64 ", 64),
        ("25%", 16),
        ("12.5%", 8),
        ("100 %", 64),
        (".5e", None),
        ("40MB", 10),
        ("43.9 MB", 10),
        ("0.04GB", 10),
        ("4000000B", 1),
        ("40MiB", 10),
        ("1TB", 64),
    ],
)
def test_forms(size: int | str, slots: int | None) -> None:
    if slots is None:
        with pytest.raises(InvalidInputError):
            slots_of(size, 64, LAYERS)
    else:
        assert slots_of(size, 64, LAYERS) == slots


def test_bytes_count_every_layer_that_a_recorded_one_stands_for() -> None:
    assert slots_of("48MB", 64, LAYERS, layer_repeat=6) == 2


def test_a_share_is_not_lost_to_rounding() -> None:
    for n_experts in (8, 60, 64, 100, 128, 256):
        for k in range(1, n_experts + 1):
            assert slots_of(f"{100.0 * k / n_experts!r}%", n_experts, LAYERS) == k


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "-1 slots per layer do not fit 64 experts"),
        (65, "65 slots per layer do not fit 64 experts"),
        ("65", "65 slots per layer do not fit 64 experts"),
        ("101%", "exceeds 100%"),
        ("1%", "does not hold one expert per layer"),
        ("0%", "does not hold one expert per layer"),
        ("3MB", "does not hold one expert per layer"),
        ("8 GBit", "unit 'GBit' is unknown"),
        ("lots", "is not understood; give slots per layer"),
        ("-25%", "is not understood"),
        ("0.25", "is not understood"),
        (0.25, "is not understood"),
        (True, "is not understood"),
        (None, "is not understood"),
    ],
)
def test_errors(size: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        slots_of(size, 64, LAYERS)  # type: ignore[arg-type]
