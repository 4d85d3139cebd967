from __future__ import annotations

import numpy as np

from specfit_runtime.prefetch.logit_map import LogitMap

N = 6


def tokens(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return early logits and true ones that follow linearly from them, but for some noise."""
    early = rng.normal(size=(n, N)).astype(np.float32)
    matrix = np.random.default_rng(9).normal(size=(N, N)) * 0.5
    return early, (early @ matrix + np.arange(N) + 0.1 * rng.normal(size=(n, N))).astype(np.float32)


def error(learned: LogitMap, rng: np.random.Generator) -> float:
    early, true = tokens(rng, 200)
    return float(np.abs(learned(early) - true).mean())


def test_before_anything_was_learned_logits_stay_as_they_are() -> None:
    early = np.ones((2, N), dtype=np.float32)
    assert (LogitMap(N)(early) == early).all()


def test_a_linear_map_is_found() -> None:
    rng, learned = np.random.default_rng(0), LogitMap(N)
    before = error(learned, rng)
    for _ in range(100):
        learned.learn(*tokens(rng, 10))
    assert error(learned, rng) < 0.1 * before


def test_a_few_tokens_change_little() -> None:
    """Fewer than what the identity counts for: else noise would replace a good first guess."""
    rng, learned = np.random.default_rng(0), LogitMap(N)
    early = rng.normal(size=(48, N)).astype(np.float32)
    true = early + rng.normal(size=(48, N)).astype(np.float32)
    assert learned.learn(early, true)
    assert np.abs(learned(early) - early).mean() < np.abs(true - early).mean()


def test_what_was_learned_long_ago_is_forgotten() -> None:
    rng, learned = np.random.default_rng(0), LogitMap(N)
    for sign in (1.0, -1.0):
        for _ in range(80):
            early, _ = tokens(rng, 256)
            learned.learn(early, sign * early)
    early, _ = tokens(rng, 50)
    assert np.abs(learned(early) + early).mean() < 0.1
