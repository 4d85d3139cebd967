"""What benchmarks/redrawn_drafts.py draws, and how it sums up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmark_scripts import benchmark_script

FIRST, POSITIONS, WIDTH, LEVELS, EXPANDED = 5, 60, 3, 4, 2
GROUPS = np.array([[0.6, 0.2, 0.1], [0.3, 0.3, 0.3], [0.9, 0.05, 0.0]])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("redrawn_drafts", monkeypatch)


@pytest.fixture
def text(script: Any) -> Any:
    # Position p uses expert p in the first layer, and two less in the second.
    experts = np.arange(POSITIONS)[:, None, None] - np.array([[0], [2]])
    experts[:FIRST] = 0
    return script.Text(
        roots=np.arange(FIRST, POSITIONS - LEVELS),
        experts=experts.astype(np.int16),
        groups=GROUPS,
        expanded=EXPANDED,
        levels=LEVELS,
        n_experts=POSITIONS,
        expert_bytes=np.array([7, 8]),
    )


def test_routing_is_the_texts(text: Any) -> None:
    trace = text.draw(np.random.default_rng(0))
    np.testing.assert_array_equal(trace.experts, text.experts[trace.token])
    for at in range(trace.n_cycles):
        nodes = slice(*trace.cycle_start[at : at + 2])
        root, depth = text.roots[at], trace.depth[nodes]
        token, accepted = trace.token[nodes], trace.accepted[nodes]
        assert token[0] == root
        assert (token[accepted] == root + depth[accepted]).all()
        assert (np.abs(token[~accepted] - root) <= 39).all()
        assert (token >= FIRST).all()


def test_the_most_probable_nodes_of_a_level_are_expanded(text: Any) -> None:
    trace = text.draw(np.random.default_rng(1))
    for at in range(trace.n_cycles):
        nodes = slice(*trace.cycle_start[at : at + 2])
        parent, depth, prob = trace.parent[nodes], trace.depth[nodes], trace.path_prob[nodes]
        counts = np.bincount(depth).tolist()
        assert counts == [1, WIDTH, *[EXPANDED * WIDTH] * (LEVELS - 1)]
        for level in range(1, LEVELS):
            expanded = np.isin(np.arange(len(parent)), parent) & (depth == level)
            others = ~expanded & (depth == level)
            assert prob[expanded].min() >= prob[others].max()


def test_a_position_is_drafted_alike_in_all_cycles(text: Any) -> None:
    trace = text.draw(np.random.default_rng(2))
    seen: dict[int, tuple[list[float], list[bool]]] = {}
    for at in range(trace.n_cycles):
        nodes = slice(*trace.cycle_start[at : at + 2])
        parent, prob, accepted = trace.parent[nodes], trace.path_prob[nodes], trace.accepted[nodes]
        for node in np.flatnonzero(accepted):
            children = np.flatnonzero(parent == node)
            if len(children):
                given = (prob[children] / prob[node]).round(4).tolist()
                found = given, accepted[children].tolist()
                assert seen.setdefault(int(trace.token[nodes][node]), found) == found
    assert len(seen) > 40


def test_children_are_accepted_as_often_as_their_probability_says(text: Any) -> None:
    hits = np.zeros(WIDTH)
    trials = 0
    for seed in range(60):
        trace = text.draw(np.random.default_rng(seed))
        first = trace.depth == 1
        hits += trace.accepted[first].reshape(-1, WIDTH).sum(axis=0)
        trials += trace.n_cycles
    assert hits / trials == pytest.approx(GROUPS.mean(axis=0), abs=0.03)


def test_a_text_is_read_from_its_traces(script: Any, text: Any) -> None:
    drawn = [text.draw(np.random.default_rng(seed)) for seed in (3, 4)]
    read = script.Text.of(drawn)
    np.testing.assert_array_equal(read.roots, text.roots)
    np.testing.assert_array_equal(read.experts[FIRST:], text.experts[FIRST:])
    assert (read.expanded, read.levels, read.n_experts) == (EXPANDED, LEVELS, POSITIONS)
    known = {tuple(group) for group in GROUPS.tolist()}
    assert {tuple(group) for group in read.groups.round(3).tolist()} == known


def test_the_best_policy_is_that_of_all_sets_or_of_each(script: Any) -> None:
    def outcome(speed: float) -> Any:
        return script.Outcome(
            tokens=12,
            seconds=12 / speed,
            predicted=12.0,
            expected=12.0,
            passes=1,
            nodes=1,
            levels=1,
        )

    own = outcome(2.0), outcome(2.0)
    others = tuple(
        {policy: outcome(speed.get(policy, 1.0)) for policy in script.FIXED}
        for speed in ({"ar": 4.0}, {"chain-2": 2.0, "ar": 2.0 / 3.0})
    )
    result = script.Result(None, own, others)
    assert result.by_set == pytest.approx([0.5, 1.0])
    # 24 tokens in 3 + 18 seconds with ar, in 12 + 6 with chain-2.
    assert result.pooled == (pytest.approx(2.0 / (24 / 18)), "chain-2")
