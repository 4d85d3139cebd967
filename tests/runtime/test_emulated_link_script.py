"""The table of policies over an emulated link, from made-up measurements."""

from __future__ import annotations

import pytest
from benchmark_scripts import benchmark_script

PARTS = ("draft", "search", "transfer", "verify", "other")


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        yield benchmark_script("emulated_link", patch)


def line(script, cache, temperature, **seconds_per_token):
    figures = {
        policy: {
            "seconds_per_token": seconds,
            "p50": seconds,
            "p95": 2.0 * seconds,
            **dict.fromkeys(script._RATES, 0.5),
            **dict.fromkeys(PARTS, 0.2),
        }
        for policy, seconds in seconds_per_token.items()
    }
    settings = {"prompts": 1, "new_tokens": 2, "ratio": 5.0, "bandwidth": 2e7, "predictor": "x"}
    column = {"cache": cache, "temperature": temperature}
    return {"column": column, "settings": settings, "figures": figures}


def test_columns_that_are_lost_come_first_and_figures_are_medians(script):
    columns = [("50%", 0.0, 1.0), ("1", 0.0, 3.0), ("25%", 1.0, 1.5), ("12.5%", 0.0, 2.01)]
    text = script.report(
        [
            line(script, cache, temperature, ar=4.0, **{"chain-2": 2.0}, specfit=own * noise)
            for cache, temperature, own in columns
            for noise in (1.0, 0.99, 10.0)
        ]
    )
    titles = [row for row in text.splitlines() if "cached, " in row]
    assert titles == [
        "one expert per layer cached, greedy: specfit loses, 0.667 of chain-2",
        "12.5% cached, greedy: specfit is within 1 % of the first, 0.995 of chain-2",
        "25% cached, temperature 1: specfit is first, 1.333 of chain-2",
        "50% cached, greedy: specfit is first, 2.000 of chain-2",
    ]
    last = [row.split()[:6] for row in text.splitlines()[-3:]]
    assert last == [
        ["ar", "1.000", "1.000", "1.000", "1.00", "2.00"],
        ["chain-2", "2.000", "2.000", "2.000", "0.50", "1.00"],
        ["specfit", "4.000", "0.400", "4.040", "0.25", "0.50"],
    ]


def test_a_first_inside_the_interval_is_said_to_be(script):
    runs = [{"ar": 4.0, "eagle-8": 2.0, "specfit": own} for own in (1.9, 2.1, 2.2)]
    text = script.report([line(script, "25%", 0.0, **run) for run in runs])
    assert "specfit has the first inside its interval, 0.952 of eagle-8" in text
