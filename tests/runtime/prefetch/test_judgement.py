from __future__ import annotations

import numpy as np

from specfit_runtime.prefetch.judgement import Judgement
from specfit_runtime.prefetch.precision import EDGES


def limits(window: float, chance: float, transfer: float = 1.0) -> list[float]:
    judgement = Judgement(1)
    judgement.note_window(0, window)
    chances = np.full((1, len(EDGES)), 0.1)
    chances[0, 6:] = chance
    judgement.update(chances, np.array([transfer]))
    return judgement.limits(0)


def test_nothing_is_worth_it_at_first() -> None:
    assert Judgement(2).limits(1) == []


def test_a_sure_guess_is_worth_what_fits_into_the_time_to_its_layer() -> None:
    assert limits(2.0, 0.99) == [EDGES[6]] * 2
    assert limits(2.5, 0.99) == [EDGES[6]] * 3
    assert limits(0.0, 0.99) == []


def test_a_guess_must_hide_more_than_a_wrong_one_costs() -> None:
    # p h > (1 - p) 3 d: three in four if the whole transfer hides, six in seven if half of it.
    assert limits(1.0, 0.74) == []
    assert limits(1.0, 0.76) == [EDGES[6]]
    assert limits(0.5, 0.85) == []
    assert limits(0.5, 0.87) == [EDGES[6]]


def test_where_transfers_take_no_time_nothing_is_fetched() -> None:
    assert limits(1.0, 0.99, transfer=0.0) == []


def passes(judgement: Judgement, n: int, hidden: float, asked: float) -> int:
    """Run passes; return how many of them guessed."""
    guessed = 0
    for _ in range(n):
        if judgement.pays:
            guessed += 1
            judgement.note_pass(hidden, asked)
        else:
            judgement.tick()
    return guessed


def test_guessing_that_hides_nothing_stops_but_for_rare_trials() -> None:
    judgement = Judgement(1)
    assert passes(judgement, 10_000, 0.0, 1.0) < 200


def test_guessing_that_pays_goes_on() -> None:
    assert passes(Judgement(1), 1000, 2.0, 1.0) == 1000


def test_it_comes_back_when_it_begins_to_pay() -> None:
    judgement = Judgement(1)
    passes(judgement, 500, 0.0, 1.0)
    assert passes(judgement, 1500, 2.0, 1.0) > 1000
