"""When prefetching judges that it pays."""

from __future__ import annotations

import numpy as np
import pytest

from specfit_runtime.decode.prefetch import Prefetcher
from specfit_runtime.errors import InvalidInputError

N_LAYERS, N_EXPERTS = 3, 16


def shown(prefetcher, right, wrong, compute_seconds, cycles=40):
    """Let it see cycles with that many experts per layer predicted rightly and wrongly."""
    resident = np.zeros((N_LAYERS, N_EXPERTS), dtype=bool)
    predicted, used = resident.copy(), resident.copy()
    used[:, :right] = True
    predicted[:, : right + wrong] = True
    for _ in range(cycles):
        prefetcher.learn(predicted, used, resident, compute_seconds)
    return prefetcher


def fresh(mode="auto"):
    return Prefetcher(mode, np.full(N_LAYERS, 1e-3))


def test_it_begins_off_and_waits_for_experience():
    assert not fresh().wanted
    assert not shown(fresh(), 8, 0, 1.0, cycles=3).wanted


def test_a_good_prediction_that_compute_can_hide_is_prefetched():
    assert shown(fresh(), 8, 1, 1.0).wanted


def test_a_bad_prediction_is_not():
    assert not shown(fresh(), 8, 4, 1.0).wanted


def test_what_no_compute_hides_is_not():
    assert not shown(fresh(), 8, 1, 1e-6).wanted


def test_it_changes_its_mind():
    prefetcher = shown(fresh(), 8, 0, 1.0)
    assert not shown(prefetcher, 2, 6, 1.0, cycles=60).wanted


def test_the_time_of_asking_counts():
    class Slow:
        def prefetch(self, layer, experts):
            for _ in range(200_000):
                pass
            return 0

    prefetcher = shown(fresh(), 1, 0, 1e-3)
    assert prefetcher.wanted
    experts = np.zeros((1, N_LAYERS, 1), dtype=np.int32)
    for _ in range(40):
        prefetcher.issue(Slow(), experts)
        shown(prefetcher, 1, 0, 1e-3, cycles=1)
    assert not prefetcher.wanted


class Asked:
    """Notes what is prefetched, in order."""

    def __init__(self):
        self.calls = []

    def prefetch(self, layer, experts):
        self.calls.append((layer, experts))
        return 0


def test_it_asks_layer_by_layer_for_the_likeliest_first_and_never_for_padding():
    cache = Asked()
    experts = np.array([[[4, 2], [1, -1]], [[2, -1], [0, 1]], [[2, 4], [0, 0]], [[7, -1], [0, 5]]])
    fresh(True).issue(cache, experts)
    assert cache.calls == [(0, [2, 4, 7]), (1, [0, 1, 5])]


@pytest.mark.parametrize("mode", [True, False])
def test_it_can_be_told(mode):
    assert fresh(mode).wanted is mode


def test_an_unknown_mode_is_refused():
    with pytest.raises(InvalidInputError, match="prefetch"):
        Prefetcher("sometimes", None)
