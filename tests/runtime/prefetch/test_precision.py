from __future__ import annotations

import numpy as np

from specfit_runtime.prefetch.precision import EDGES, Precision


def taught(right: float, n: int = 400, layer: int = 0, margin: float = 1.1) -> Precision:
    precision, rng = Precision(2), np.random.default_rng(0)
    for _ in range(n):
        precision.learn(
            np.array([layer]), np.array([margin], dtype=np.float32), rng.random(1) < right
        )
    return precision


def test_before_anything_was_seen_guesses_are_held_to_be_wrong() -> None:
    assert (Precision(3).chances() == 0.25).all()


def test_chances_are_the_shares_that_were_used() -> None:
    at = int(np.searchsorted(EDGES, 1.1, side="right")) - 1
    assert abs(taught(0.9).chances()[0, at] - 0.9) < 0.05
    assert abs(taught(0.2).chances()[0, at] - 0.2) < 0.05


def test_other_layers_begin_with_what_all_have_seen() -> None:
    at = int(np.searchsorted(EDGES, 1.1, side="right")) - 1
    assert taught(0.9, layer=0).chances()[1, at] > 0.8


def test_a_larger_margin_is_never_held_for_a_smaller_chance() -> None:
    precision = taught(0.9)
    for _ in range(50):
        precision.learn(np.array([0]), np.array([5.0], dtype=np.float32), np.array([False]))
    assert (np.diff(precision.chances(), axis=1) >= 0.0).all()
