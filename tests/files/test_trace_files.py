"""Trace files: round trips, accessors, and every contradiction that a trace can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt import (
    CostModel,
    InvalidInputError,
    Trace,
    evaluate,
    load_trace,
    save_trace,
    solve_instance,
)
from specfit_opt.files.trace import FIELDS

COST = CostModel(1.0, 0.1, 0.2)

# Two prompts; cycle 0 has a root with two children, one accepted with a child of its own.
ARRAYS: dict[str, Any] = {
    "cycle_start": np.array([0, 4, 5, 7], dtype=np.int64),
    "prompt": np.array([3, 3, 1], dtype=np.int32),
    "position": np.array([5, 6, 0], dtype=np.int32),
    "parent": np.array([-1, 0, 0, 2, -1, -1, 0], dtype=np.int32),
    "token": np.array([7, 8, 9, 1, 9, 4, 0], dtype=np.int32),
    "path_prob": np.array([1, 0.5, 0.25, 0.25, 1, 1, 0], dtype=np.float32),
    "depth": np.array([0, 1, 1, 2, 0, 0, 1], dtype=np.int16),
    "accepted": np.array([1, 0, 1, 1, 1, 1, 0], dtype=np.bool_),
    "experts": np.array(
        [
            [[0, 1], [2, -1]],
            [[1, 2], [2, 2]],
            [[3, 3], [0, 1]],
            [[0, 1], [3, -1]],
            [[2, 3], [0, 0]],
            [[1, 0], [1, 2]],
            [[3, 2], [3, 1]],
        ],
        dtype=np.int16,
    ),
    "n_experts": np.int32(4),
    "expert_bytes": np.array([1000, 2000], dtype=np.int64),
    "states": np.arange(-10, 11, dtype=np.float16).reshape(7, 3),
}


def changed(name: str, at: Any, value: Any) -> dict[str, Any]:
    arrays = {key: np.array(a) for key, a in ARRAYS.items()}
    arrays[name][at] = value
    return arrays


def make(**changes: Any) -> Trace:
    return Trace(**(ARRAYS | {"n_experts": 4} | changes))


# ---- what a trace says


def test_figures() -> None:
    trace = make(name="mine")
    assert len(trace) == trace.n_cycles == 3
    assert (trace.n_nodes, trace.n_layers, trace.n_experts) == (7, 2, 4)
    assert trace.max_depth == 2
    assert trace.prompts == ((0, 2), (2, 3))
    assert "mine" in repr(trace)
    assert "n_cycles=3" in repr(trace)


def test_cycle() -> None:
    trace = make()
    cycle = trace.cycle(0)
    assert (cycle.index, cycle.prompt, cycle.position) == (0, 3, 5)
    assert cycle.tree.parent.tolist() == [-1, 0, 0, 2]
    assert cycle.tree.path_prob.tolist() == [1.0, 0.5, 0.25, 0.25]
    assert cycle.token.tolist() == [7, 8, 9, 1]
    assert cycle.accepted.tolist() == [True, False, True, True]
    assert cycle.experts.tolist() == ARRAYS["experts"][:4].tolist()
    assert cycle.states is not None
    assert cycle.states.tolist() == ARRAYS["states"][:4].tolist()
    assert make(states=None).cycle(0).states is None
    assert cycle.routing.rows.tolist() == [[0b11, 0b100], [0b110, 0b100], [8, 0b11], [0b11, 8]]
    assert trace.cycle(2).tree.parent.tolist() == [-1, 0]
    assert [c.index for c in trace.cycles()] == [0, 1, 2]


def test_cycles_are_views_that_are_built_once() -> None:
    trace = make()
    cycle = trace.cycle(0)
    assert np.shares_memory(cycle.experts, trace.experts)
    assert np.shares_memory(cycle.routing.experts, trace.experts)
    assert trace.cycle(0) is cycle
    assert trace.cycle(np.int64(0)) is cycle  # type: ignore[arg-type]
    assert cycle.tree is cycle.tree
    assert cycle.routing is cycle.routing
    for array in (cycle.experts, cycle.token, cycle.accepted, trace.path_prob, trace.cycle_start):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("index", [-1, 3])
def test_no_such_cycle(index: int) -> None:
    with pytest.raises(
        InvalidInputError, match=f"index of a cycle .* from 0 to 2, got {index}"
    ):
        make().cycle(index)


def test_instance() -> None:
    trace = make(name="mine")
    instance = trace.instance(0, COST)
    assert instance.name == "mine:3/5"
    assert instance.tree is trace.cycle(0).tree
    assert instance.routing is trace.cycle(0).routing
    nodes = [0, 2, 3]
    solution = evaluate(instance.tree, instance.routing, instance.cost_model, nodes)
    assert solution.experts_used.tolist() == [3, 4]
    assert solution.transfer_time == pytest.approx(7 * 0.2)
    assert solution.expected_tokens == 1.5


def test_instance_with_residents() -> None:
    trace = make()
    resident = np.array([[True, True, False, False], [False, False, True, False]])
    instance = trace.instance(0, COST, resident)
    assert instance.routing.resident.tolist() == resident.tolist()
    assert instance.routing.rows is trace.cycle(0).routing.rows
    solution = evaluate(instance.tree, instance.routing, instance.cost_model, [0])
    assert solution.experts_loaded.tolist() == [0, 0]
    with pytest.raises(InvalidInputError, match=r"resident has shape \(1, 4\)"):
        trace.instance(0, COST, resident[:1])
    with pytest.raises(InvalidInputError, match=r"expert_time has shape \(3,\)"):
        trace.instance(0, CostModel(1.0, 0.1, [0.1] * 3))


def test_single_precision_rounding_is_no_error() -> None:
    # The product of three float32 numbers may exceed the product of two in the last digit.
    up = np.nextafter(np.float32(0.25), np.float32(1))
    trace = Trace(**(changed("path_prob", 3, up) | {"n_experts": 4}))
    assert trace.cycle(0).tree.path_prob.tolist() == [1.0, 0.5, 0.25, 0.25]


def test_arrays_are_private() -> None:
    arrays = changed("prompt", 0, 3)
    trace = Trace(**(arrays | {"n_experts": 4}))
    arrays["experts"][...] = 0
    arrays["path_prob"][...] = 0
    arrays["accepted"][...] = False
    assert trace.experts.tolist() == ARRAYS["experts"].tolist()
    assert trace.path_prob.tolist() == ARRAYS["path_prob"].tolist()
    assert trace.accepted.tolist() == ARRAYS["accepted"].tolist()


def test_states_are_kept_in_half_precision() -> None:
    trace = make(states=np.full((7, 2), 0.1))
    assert trace.states is not None
    assert trace.states.dtype == np.float16
    assert trace.states[0, 0] == np.float16(0.1)
    with pytest.raises(InvalidInputError, match="not finite in half precision"):
        make(states=np.full((7, 2), 1e6))
    for shape in ((6, 2), (7,), (7, 0), (7, 2, 1)):
        with pytest.raises(InvalidInputError, match=r"states has shape .* give one row per node"):
            make(states=np.zeros(shape))


# ---- files


@pytest.mark.parametrize("seed", range(20))
def test_round_trip(seed: int, tmp_path: Path) -> None:
    trace = random_trace(np.random.default_rng(seed), sizes=seed % 2 == 0)
    path = tmp_path / "walk.npz"
    save_trace(path, trace)
    back = load_trace(path)
    assert back.name == "walk"
    for field in FIELDS:
        ours, theirs = getattr(trace, field.name), getattr(back, field.name)
        if ours is None:
            assert theirs is None
        else:
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype, field.name
            assert np.array_equal(ours, theirs), field.name
    first = path.read_bytes()
    save_trace(path, back)
    assert path.read_bytes() == first


def test_ids_beyond_int16(tmp_path: Path) -> None:
    experts = ARRAYS["experts"].astype(np.int64)
    experts[0, 0, 0] = 2**15
    trace = make(experts=experts, n_experts=2**15 + 1)
    save_trace(tmp_path / "a.npz", trace)
    back = load_trace(tmp_path / "a.npz")
    assert back.experts.dtype == np.int32
    assert back.experts.tolist() == experts.tolist()


def test_only_npz(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"a\.json: a trace file must end in \.npz"):
        save_trace(tmp_path / "a.json", make())
    with pytest.raises(InvalidInputError, match="expected a Trace, got PosixPath"):
        save_trace(make(), tmp_path / "a.npz")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [f.name for f in FIELDS if not f.optional])
def test_missing_array(name: str, tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    np.savez(path, **{key: a for key, a in ARRAYS.items() if key != name})
    with pytest.raises(InvalidInputError, match=rf"case\.npz: lacks the array '{name}'; a trace"):
        load_trace(path)


def test_some_may_be_absent_but_nothing_may_be_added(tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    for name in ("expert_bytes", "states"):
        np.savez(path, **{key: a for key, a in ARRAYS.items() if key != name})
        assert getattr(load_trace(path), name) is None
        save_trace(path, load_trace(path))
        assert getattr(load_trace(path), name) is None
    np.savez(path, **ARRAYS, logits=np.zeros(7))
    with pytest.raises(InvalidInputError, match=r"has the array 'logits' that the format does not"):
        load_trace(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cycle_start", lambda a: a.astype(np.int32), "int32 but must be int64"),
        ("path_prob", lambda a: a.astype(np.float64), "float64 but must be float32"),
        ("accepted", lambda a: a.astype(np.int8), "int8 but must be bool"),
        ("depth", lambda a: a.astype(np.int64), "int64 but must be int16"),
        ("experts", lambda a: a.astype(np.int64), "int64 but must be int16 or int32"),
        ("prompt", lambda a: a[:-1], r"shape \(2,\) but cycle_start says that C = 3"),
        ("token", lambda a: a[:-1], r"shape \(6,\) but parent says that N = 7"),
        ("experts", lambda a: a[:, 0], r"shape \(7, 2\) but must have shape \(N, L, k\)"),
        ("expert_bytes", lambda a: a[:1], r"shape \(1,\) but experts says that L = 2"),
        ("states", lambda a: a[:5], r"shape \(5, 3\) but parent says that N = 7"),
        ("states", lambda a: a[:, 0], r"shape \(7,\) but must have shape \(N, H\)"),
        ("states", lambda a: a.astype(np.float32), "float32 but must be float16"),
    ],
)
def test_wrong_dtype_or_shape(name: str, change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "case.npz"
    np.savez(path, **(ARRAYS | {name: change(ARRAYS[name])}))
    with pytest.raises(InvalidInputError, match=rf"case\.npz: array '{name}' has .*{message}"):
        load_trace(path)


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("cycle_start", 0, 1, "cycle_start runs from 1 to 7 but must run from 0 to .* nodes, 7"),
        ("cycle_start", 3, 6, "cycle_start runs from 0 to 6"),
        ("cycle_start", 2, 4, r"cycle_start\[2\] = 4 does not exceed cycle_start\[1\] = 4"),
        ("cycle_start", 2, 3, r"cycle_start\[2\] = 3 does not exceed"),
        ("cycle_start", 1, 3, r"cycle 1, node 0 \(node 3 of the file\): parent = 2; a cycle begin"),
        ("prompt", 1, 2, "^.*: prompt 3 comes back"),
        ("prompt", 0, -1, r"prompt\[0\] = -1 is negative"),
        ("position", 1, 5, "cycle 1 of prompt 3 is at position 5 but the one before at 5"),
        ("position", 1, 7, "cycle 1 of prompt 3 is at position 7 but the one before at 5"),
        ("position", 0, -5, r"position\[0\] = -5 is negative"),
        ("parent", 0, 0, r"cycle 0, node 0 .* parent = 0; a cycle begins with its root"),
        ("parent", 1, -1, "cycle 0, node 1 .* parent = -1; .* 0 to 0 .a cycle has one root"),
        ("parent", 3, 3, "cycle 0, node 3 .* parent = 3; .* comes earlier, 0 to 2"),
        ("parent", 6, 3, r"cycle 2, node 1 \(node 6 of the file\): parent = 3"),
        ("depth", 3, 1, "cycle 0, node 3 .* depth = 1 but parents give 2"),
        ("depth", 4, 1, "cycle 1, node 0 .* depth = 1 but parents give 0"),
        ("path_prob", 1, np.nan, "cycle 0, node 1 .* path_prob = nan; it must be in"),
        ("path_prob", 1, -0.5, "cycle 0, node 1 .* path_prob = -0.5; it must be in"),
        ("path_prob", 1, 1.5, "cycle 0, node 1 .* path_prob = 1.5; it must be in"),
        ("path_prob", 4, 0.5, "cycle 1, node 0 .* path_prob = 0.5; a root is committed"),
        ("path_prob", 3, 0.5, "cycle 0, node 3 .* path_prob = 0.5 exceeds that of its parent, 0.2"),
        ("token", 6, -1, "cycle 2, node 1 .* token = -1; token ids count from 0"),
        ("accepted", 4, False, "cycle 1, node 0 .* the root is not accepted"),
        ("accepted", 2, False, "cycle 0, node 3 .* accepted but its parent 2 is not"),
        ("accepted", 1, True, "cycle 0, node 1 .* two children of its parent 0 are accepted"),
        ("experts", (6, 1, 0), 4, "cycle 2, node 1 .* expert 4 in layer 1, slot 0; ids are 0 to 3"),
        ("experts", (6, 1, 0), -2, "cycle 2, node 1 .* expert -2 in layer 1, slot 0"),
        ("n_experts", (), 3, "cycle 0, node 2 .* expert 3 in layer 0, slot 0; ids are 0 to 2"),
        ("n_experts", (), 0, "n_experts must be a whole number of at least 1, got 0"),
        ("expert_bytes", 1, 0, r"expert_bytes\[1\] = 0; an expert has a positive size"),
        ("states", (5, 1), np.nan, r"states\[5\] is not finite in half precision"),
        ("states", (6, 2), np.inf, r"states\[6\] is not finite in half precision"),
    ],
)
def test_contradiction(name: str, at: Any, value: Any, message: str, tmp_path: Path) -> None:
    arrays = changed(name, at, value)
    if "comes back" in message:  # prompts 3, 2, 3
        arrays["prompt"][2] = 3
    path = tmp_path / "case.npz"
    np.savez(path, **arrays)
    with pytest.raises(InvalidInputError, match=rf"case\.npz: .*{message.removeprefix('^.*: ')}"):
        load_trace(path)


def test_no_cycle(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the trace has no cycle"):
        make(
            cycle_start=[0],
            prompt=np.zeros(0, dtype=np.int32),
            position=np.zeros(0, dtype=np.int32),
            **{key: ARRAYS[key][:0] for key in ("parent", "token", "path_prob", "depth")},
            accepted=ARRAYS["accepted"][:0],
            experts=ARRAYS["experts"][:0],
            states=None,
        )


def test_shapes_that_disagree_in_memory() -> None:
    with pytest.raises(InvalidInputError, match=r"parent has 7 nodes but token has shape \(6,\)"):
        make(token=ARRAYS["token"][:-1])
    with pytest.raises(InvalidInputError, match="cycle_start has 4 entries but prompt has 2"):
        make(prompt=ARRAYS["prompt"][:-1])
    with pytest.raises(InvalidInputError, match="accepted must hold bool, got dtype int64"):
        make(accepted=[1, 0, 1, 1, 1, 1, 0])
    with pytest.raises(InvalidInputError, match=r"n_experts must be a whole number .*, got 4\.5"):
        make(n_experts=4.5)


# ---- recorded traces beside the checkout


@pytest.mark.parametrize("folder", ["small", "simulated"])
def test_recorded_traces(folder: str, shared: Path) -> None:
    paths = sorted((shared / "traces" / folder).glob("*.npz"))
    assert paths
    for path in paths:
        trace = load_trace(path)
        assert trace.name == path.stem
        assert trace.n_cycles > 50
        sizes = [len(cycle.tree) for cycle in trace.cycles()]
        assert sum(sizes) == trace.n_nodes
        first = trace.instance(0, COST)
        assert solve_instance(first, method="root").n_selected == 1


def test_select_keeps_the_chosen_cycles_and_everything_of_them() -> None:
    trace = random_trace(np.random.default_rng(3), prompts=3)
    second = trace.prompt == np.unique(trace.prompt)[1]
    part = trace.select(second, name="second")
    assert part.name == "second"
    assert part.n_cycles == int(second.sum())
    for own, index in zip(part.cycles(), np.flatnonzero(second), strict=True):
        other = trace.cycle(int(index))
        assert own.position == other.position
        for field in ("token", "accepted", "experts"):
            assert np.array_equal(getattr(own, field), getattr(other, field))
        assert np.array_equal(own.tree.path_prob, other.tree.path_prob)
    assert np.array_equal(part.expert_bytes, trace.expert_bytes)  # type: ignore[arg-type]
    whole = trace.select(np.ones(trace.n_cycles, dtype=np.bool_))
    assert np.array_equal(whole.cycle_start, trace.cycle_start)
    assert whole.name == trace.name


def test_select_refuses_what_is_no_choice_of_cycles() -> None:
    trace = random_trace(np.random.default_rng(3))
    gap = np.ones(trace.n_cycles, dtype=np.bool_)
    gap[2] = False
    for cycles, message in (
        (gap, "one cycle per position"),
        (np.zeros(trace.n_cycles, dtype=np.bool_), "no cycle"),
        (np.arange(trace.n_cycles), "one bool for each"),
        ([True], "one bool for each"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            trace.select(cycles)
