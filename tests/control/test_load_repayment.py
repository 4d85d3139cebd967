"""What the cache pays back of loads unneeded experts: against histories whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from specfit_opt.caches import CACHE_RULES, SimulatedCache
from specfit_opt.control.load_repayment import LoadRepayment

L, E = 2, 32


def rows(*experts: int) -> NDArray[np.int64]:
    """One node per expert, the same in every layer."""
    return np.repeat(np.array(experts)[:, None, None], L, axis=1)


class Decode:
    """Passes over an LRU cache that a `LoadRepayment` looks at."""

    def __init__(self, slots: int) -> None:
        self.slots = np.full(L, slots)
        self.cache = SimulatedCache(CACHE_RULES["lru"], slots, L, E)
        self.repayment = LoadRepayment(L, E)

    def run(self, *experts: int, accepted: int = 1) -> None:
        """Run nodes, of which the first few are accepted."""
        self.repayment.look(self.cache.resident)
        used = np.zeros((L, E), dtype=np.bool_)
        used[:, list(experts)] = True
        misses = np.count_nonzero(self.cache.use(used), axis=1)
        self.repayment.learn(rows(*experts), np.arange(accepted), misses)

    @property
    def share(self) -> NDArray[np.float64]:
        self.repayment.look(self.cache.resident)
        return self.repayment.share(self.slots)


def test_nothing_is_repaid_before_anything_is_known() -> None:
    assert Decode(8).share.tolist() == [1.0, 1.0]


def test_a_cache_that_is_still_filling_repays_what_the_text_uses() -> None:
    decode = Decode(E)
    for token in range(12):
        decode.run(2 * token, 2 * token + 1)  # the second is rejected and used by the next but one
        decode.run(2 * token + 1)
    assert (decode.share < 0.05).all()


def test_a_small_cache_does_not_repay_what_it_evicts_unused() -> None:
    decode = Decode(2)
    for token in range(60):
        decode.run(token % 8, 8 + token % 24)  # what is rejected is never used
    assert (decode.share > 0.9).all()


def test_what_is_evicted_for_it_is_counted_against_it() -> None:
    """A text that goes around one expert more than fits: any unneeded load evicts one."""
    useless, useful = Decode(4), Decode(4)
    for token in range(80):
        useless.run(token % 4, 4 + token % 28)  # each draft evicts what is needed next
        useful.run(token % 32, (token + 1) % 32)  # each draft is needed next
    assert (useless.share == 1.0).all()
    assert (useful.share < 0.5).all()


def test_loads_become_rarer_as_the_cache_fills() -> None:
    """With uniform routing all experts are alike, so only the time to the first eviction counts.

    An expert is used with probability 1/E per token and loaded twice as often, because each token
    runs a rejected node beside it. Of n experts outside the cache one is loaded per E/2n tokens, so
    filling it takes tau = E/2 ln(E / (E - S)) tokens, and an unneeded load is repaid within them
    with probability 1 - exp(-tau / E) = 1 - sqrt((E - S) / E). Texts are short: what was not used
    or missed by their end must count as not used so far.
    """
    random = np.random.default_rng(0)
    decode = Decode(24)
    shares = []
    for _ in range(400):
        decode.repayment.start()
        decode.cache = SimulatedCache(CACHE_RULES["lru"], 24, L, E)
        shares.append(decode.share)
        for _ in range(40):
            decode.run(*random.choice(E, 2, replace=False))
    assert np.mean(shares[100:]) == pytest.approx(np.sqrt(8 / 32), abs=0.06)


def test_a_cache_with_room_for_all_repays_everything() -> None:
    decode = Decode(E)
    for token in range(4):
        decode.run(token, 16 + token)
    assert decode.share.tolist() == [0.0, 0.0]
    decode.run(*range(E))
    assert np.isfinite(decode.share).all()


def test_layers_are_told_apart() -> None:
    decode = Decode(16)
    for token in range(100):
        drafted = 8 + token % 24
        for ids in ([[0, 0], [drafted, drafted]], [[drafted, 0]]):
            decode.repayment.look(decode.cache.resident)
            nodes = np.array(ids)[:, :, None]  # the first layer uses what was rejected before
            used = np.zeros((L, E), dtype=np.bool_)
            used[np.arange(L), nodes[:, :, 0]] = True
            misses = np.count_nonzero(decode.cache.use(used), axis=1)
            decode.repayment.learn(nodes, np.array([0]), misses)
    assert decode.share[0] < 0.1
    assert decode.share[1] > 0.3


def test_a_load_is_pending_until_it_is_used_or_evicted() -> None:
    decode = Decode(3)
    decode.run(0, 1)
    assert decode.repayment.unused[0].nonzero()[0].tolist() == [1]
    decode.run(1)
    assert not decode.repayment.unused.any()
    decode.run(2, 3)
    decode.run(4)
    decode.run(5)
    decode.run(6)
    decode.repayment.look(decode.cache.resident)
    assert not decode.repayment.unused.any()


def test_a_cache_emptied_between_texts_evicted_nothing() -> None:
    shares = []
    for told in (True, False):
        decode = Decode(4)
        for _ in range(4):
            if told:
                decode.repayment.start()
            decode.cache = SimulatedCache(CACHE_RULES["lru"], 4, L, E)
            for token in range(4):
                decode.run(token, token + 1)  # each draft is needed next
        shares.append(decode.share)
    assert (shares[0] < shares[1]).all()


def test_shares_are_shares() -> None:
    random = np.random.default_rng(0)
    for slots in (1, 4, 16, E):
        decode = Decode(slots)
        for _ in range(60):
            n = int(random.integers(1, 5))
            decode.run(*random.choice(E, n, replace=False), accepted=int(random.integers(1, n + 1)))
            share = decode.share
            assert share.shape == (L,)
            assert ((share >= 0.0) & (share <= 1.0)).all()
