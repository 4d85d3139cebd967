"""What benchmarks/verdicts.py draws, how it sums up, and what it keeps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import benchmark_script
from random_trace import random_trace

from specfit_opt.data import example_trace
from specfit_opt.files import save_trace
from specfit_opt.replay import replay
from specfit_runtime.predictors import make_predictor

FIRST, POSITIONS, WIDTH, LEVELS, EXPANDED = 5, 60, 3, 4, 2
GROUPS = np.array([[0.6, 0.2, 0.1], [0.3, 0.3, 0.3], [0.9, 0.05, 0.0]])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return benchmark_script("verdicts", monkeypatch)


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


@pytest.mark.parametrize("rule", ["simulated_past", "simulated_far"])
def test_rejected_nodes_route_as_the_rule_says(text: Any, rule: str) -> None:
    experts = np.concatenate([text.experts, text.experts])  # far needs a longer text
    text = dataclasses.replace(text, experts=experts)
    trace = text.draw(np.random.default_rng(0), rule)
    for at in range(trace.n_cycles):
        nodes = slice(*trace.cycle_start[at : at + 2])
        root, rejected = text.roots[at], ~trace.accepted[nodes]
        token = trace.token[nodes][rejected]
        if rule == "simulated_past":
            assert (token <= root).all()
            assert (token >= max(root - 39, FIRST)).all()
        else:
            own = root + trace.depth[nodes][rejected]
            assert (np.abs(token - own) >= 40).all()
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


def outcome(script: Any, speed: float) -> Any:
    figures = dict.fromkeys(("nodes", "levels", "predicted", "expected", "draft", "p50", "p95"), 1)
    seconds = 12 / speed
    parts = {"compute": 0.25 * seconds, "draft": 0.0, "transfer": 0.75 * seconds, "host": 0.0}
    return script.Outcome(**figures | parts, tokens=12, passes=1)


def result(script: Any, *speeds: dict[str, float], cache: str = "25%") -> Any:
    cell = script.Cell(script.SMALL, "pcie4", "bf16", cache)
    names = (*script.FIXED_POLICIES, "specfit")
    return script.Result(
        cell, tuple({name: outcome(script, one.get(name, 1.0)) for name in names} for one in speeds)
    )


def test_the_best_policy_is_that_of_all_sets_or_of_each(script: Any) -> None:
    found = result(
        script,
        {"specfit": 2.0, "ar": 4.0},
        {"specfit": 2.0, "chain-2": 2.0, "ar": 2.0 / 3.0},
    )
    assert found.by_set == pytest.approx([0.5, 1.0])
    # 24 tokens in 3 + 18 seconds with ar, in 12 + 6 with chain-2.
    assert found.of_best == pytest.approx(2.0 / (24 / 18))
    assert script.best_of(found.together) == "chain-2"
    assert found.held


def test_cells_that_miss_come_first_with_their_cause(script: Any) -> None:
    behind = result(script, {"specfit": 2.0, "chain-2": 2.5}, cache="50%")
    slower = result(script, {"specfit": 0.98}, cache="12.5%")
    good = result(script, {"specfit": 2.0})
    assert [r.held for r in (behind, slower, good)] == [False, False, True]
    # A quarter more time, three quarters of it in loads.
    assert behind.lost["transfer"] == pytest.approx(0.75 * 0.25)
    text = script.section("simulated", [good, slower, behind], 1)
    assert "3 cells, 2 missed" in text
    assert "MISSED: at least 0.97 of the best fixed policy, each cell: 0.800" in text
    assert "MISSED: at least 0.99 of plain decoding, each cell: 0.980" in text
    assert "held: at least 1.05 of the best single fixed policy" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(script.SMALL.name)]
    assert [row[4] for row in rows] == ["0.800", "0.980", "2.000"]
    assert [row[-1] for row in rows] == ["transfer", "transfer", "-"]


def test_recorded_texts_are_dealt_out_to_sets(script: Any) -> None:
    traces = [random_trace(np.random.default_rng(seed), prompts=3) for seed in (1, 2)]
    sets = script.recorded_sets(traces, 4)
    assert [sum(len(trace.prompts) for trace in one) for one in sets] == [2, 2, 1, 1]
    assert sum(trace.n_cycles for one in sets for trace in one) == sum(t.n_cycles for t in traces)
    with pytest.raises(SystemExit, match="6 recorded texts are too few for 7 sets"):
        script.recorded_sets(traces, 7)


def test_what_is_finished_is_kept(script: Any, tmp_path: Path) -> None:
    machine = script.Machine(script.SMALL, "pcie4", "bf16")
    found = [script.Result(cell, result(script, {}).sets) for cell in machine.cells()]
    job = machine, "simulated", 1
    kept = script.Kept(tmp_path / "kept.jsonl")
    assert kept.get(job) is None
    kept.put(job, found)
    assert kept.get(job) == found
    again = script.Kept(tmp_path / "kept.jsonl")
    assert again.get(job) == found
    assert again.get((machine, "simulated", 2)) is None


def test_recordings_are_replayed_with_what_tokens_used_before(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_trace(tmp_path / "example.npz", example_trace())
    (machine, *_) = script.machines_of(str(tmp_path), tmp_path)
    assert machine.model.layer_repeat == 6
    monkeypatch.setattr(script, "FIXED_POLICIES", ("ar", "chain-1"))
    monkeypatch.setattr(
        script.Machine,
        "cells",
        lambda self: [script.Cell(self.model, self.profile, self.precision, "25%")],
    )
    (found,) = script.run((machine, str(tmp_path), 1))
    options = {**found.cell.options(example_trace()), "cache": "25%"}
    (own,) = replay(
        example_trace(),
        policies=["specfit"],
        predictor=lambda: make_predictor("frequency"),
        **options,
    )
    assert found.sets[0]["specfit"].speed == pytest.approx(own.tokens_per_second)
    assert found.together.keys() == {"ar", "chain-1", "specfit"}
