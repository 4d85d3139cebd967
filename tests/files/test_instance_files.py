"""Instance files: round trips, the shipped fixtures, and everything a file can get wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, settings

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    evaluate,
    load_instance,
    save_instance,
    solve_instance,
)
from specfit_opt.files import instance_json

DATA = Path(__file__).resolve().parents[1] / "data"
FIXTURES = sorted(DATA.glob("*.npz"))
OPTIMA: dict[str, Any] = json.loads((DATA / "optima.json").read_text())


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays are equal to the last bit, NaN included."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_same(a: Instance, b: Instance) -> None:
    """Compare everything that the two problems say."""
    n, n_roots = a.tree.n_nodes, a.tree.n_roots
    shape = (a.routing.n_layers, a.routing.n_experts)
    assert same_bits(a.tree.parent, b.tree.parent)
    assert same_bits(a.tree.path_prob, b.tree.path_prob)
    assert a.routing.n_experts == b.routing.n_experts
    assert np.array_equal(a.routing.experts, b.routing.experts)
    assert same_bits(a.routing.rows, b.routing.rows)
    assert same_bits(a.routing.resident, b.routing.resident)
    assert a.cost_model.fixed_time == b.cost_model.fixed_time
    assert a.cost_model.resident_time == b.cost_model.resident_time
    assert same_bits(a.cost_model.node_table(n)[n_roots:], b.cost_model.node_table(n)[n_roots:])
    assert same_bits(a.cost_model.expert_table(*shape), b.cost_model.expert_table(*shape))


# ---- the fixtures


def test_there_are_42_fixtures() -> None:
    assert len(FIXTURES) == 42
    assert {path.stem for path in FIXTURES} == set(OPTIMA)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixture(path: Path, tmp_path: Path) -> None:
    instance = load_instance(path)
    assert instance.name == path.stem
    assert instance.tree.n_nodes == OPTIMA[path.stem]["nodes"]
    assert ("forest" in path.stem) == (instance.tree.n_roots > 1)
    assert instance.routing.experts.dtype == np.int16
    for name in ("copy.npz", "copy.json"):
        save_instance(tmp_path / name, instance)
        assert_same(instance, load_instance(tmp_path / name))
    # The exchange format has one spelling: what is read is what is written.
    again = np.load(tmp_path / "copy.npz")
    original = np.load(path)
    assert set(again.files) == set(original.files)
    for key in again.files:
        assert same_bits(again[key], original[key]), key


# ---- round trips


@settings(max_examples=40)  # every one writes and syncs two files
@given(strategies.instances())
def test_round_trip(instance: Instance) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.npz", "a.json"):
            path = Path(folder, name)
            save_instance(path, instance)
            back = load_instance(path)
            assert_same(instance, back)
            nodes = back.tree.prefix_order().tolist()
            table = instance.cost_model.node_table(len(nodes))
            if math.isfinite(table[-1]):
                parts = (instance.tree, instance.routing, instance.cost_model)
                ours = evaluate(*parts, nodes)
                theirs = evaluate(back.tree, back.routing, back.cost_model, nodes)
                assert ours.to_dict() == theirs.to_dict()


def small(**changes: Any) -> Instance:
    instance = Instance(
        DraftTree([-1, 0, 0], [1.0, 0.8, 0.1]),
        ExpertRouting([[[0, 1]], [[0, 2]], [[3, 4]]], 5, np.array([[True] + [False] * 4])),
        CostModel(1.0, 0.1, 0.2),
        name="small",
    )
    return dataclasses.replace(instance, **changes)


def test_a_slope_becomes_its_table(tmp_path: Path) -> None:
    instance = small()
    save_instance(tmp_path / "a.npz", instance)
    back = load_instance(tmp_path / "a.npz")
    assert back.cost_model.node_table(3).tolist() == [0.0, 0.1, 0.2, 0.1 * 3]
    assert not isinstance(back.cost_model.node_time, float)
    assert solve_instance(back).throughput == solve_instance(instance).throughput


def test_json_keeps_the_form_of_the_times(tmp_path: Path) -> None:
    for node_time in (0.1, [7.0, 0.1, math.inf, 0.3]):
        for expert_time in (0.2, [0.2], [[0.1, 0.2, 0.3, 0.4, 0.5]]):
            cost = CostModel(1.0, node_time, expert_time, 0.05)
            save_instance(tmp_path / "a.json", small(cost_model=cost))
            back = load_instance(tmp_path / "a.json").cost_model
            assert same_bits(back.node_time, cost.node_time)
            assert same_bits(back.expert_time, cost.expert_time)


def test_json_is_readable(tmp_path: Path) -> None:
    save_instance(tmp_path / "a.json", small(name="zwölf"))
    text = (tmp_path / "a.json").read_text()
    assert len(text.splitlines()) < 20
    assert json.loads(text)["resident"] == [[0, 0]]
    assert load_instance(tmp_path / "a.json").name == "zwölf"
    assert load_instance(tmp_path / "a.json").routing.experts.dtype == np.int16


def test_ids_beyond_int16(tmp_path: Path) -> None:
    n_experts = 2**15 + 1
    routing = ExpertRouting([[[0]], [[2**15]], [[1]]], n_experts)
    for name in ("a.npz", "a.json"):
        save_instance(tmp_path / name, small(routing=routing))
        back = load_instance(tmp_path / name).routing
        assert back.experts.tolist() == [[[0]], [[2**15]], [[1]]]
        assert back.experts.dtype == np.int32
    narrow = ExpertRouting(np.array([[[0]], [[2**15 - 1]], [[1]]], dtype=np.int64), 2**15)
    save_instance(tmp_path / "a.npz", small(routing=narrow))
    assert load_instance(tmp_path / "a.npz").routing.experts.dtype == np.int16


def test_the_same_instance_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "a.json"):
        save_instance(tmp_path / name, small())
        first = (tmp_path / name).read_bytes()
        save_instance(tmp_path / name, small())
        assert (tmp_path / name).read_bytes() == first
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.npz"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    save_instance(path, small())
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        save_instance(path, small())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npz"]


def test_arguments_in_the_wrong_order(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected an Instance, got PosixPath"):
        save_instance(small(), tmp_path / "a.npz")  # type: ignore[arg-type]


# ---- archives that are not right


@pytest.fixture
def arrays() -> dict[str, Any]:
    return dict(np.load(DATA / "029-tiny-affine.npz"))


def load_arrays(folder: Path, arrays: dict[str, Any]) -> Instance:
    path = folder / "case.npz"
    np.savez(path, **arrays)
    return load_instance(path)


@pytest.mark.parametrize(
    "name",
    [
        "parent",
        "path_prob",
        "experts",
        "n_experts",
        "resident",
        "fixed_time",
        "node_time",
        "expert_time",
        "resident_time",
    ],
)
def test_missing_array(name: str, arrays: dict[str, Any], tmp_path: Path) -> None:
    del arrays[name]
    with pytest.raises(InvalidInputError, match=rf"case\.npz: lacks the array '{name}'; an inst"):
        load_arrays(tmp_path, arrays)


def test_extra_array(arrays: dict[str, Any], tmp_path: Path) -> None:
    message = r"case\.npz: has the arrays 'depth', 'extra' that the format does not know; .* out"
    with pytest.raises(InvalidInputError, match=message):
        load_arrays(tmp_path, arrays | {"depth": np.zeros(53), "extra": np.zeros(1)})


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("parent", np.int64, r"int64 but must be int32; convert it with .*dtype=numpy\.int32"),
        ("path_prob", np.float32, "float32 but must be float64"),
        ("experts", np.int64, "int64 but must be int16 or int32"),
        ("experts", np.uint16, "uint16 but must be int16 or int32"),
        ("n_experts", np.float64, "float64 but must be an integer"),
        ("resident", np.uint8, "uint8 but must be bool"),
        ("fixed_time", np.complex128, "complex128 but must be a real number"),
        ("node_time", np.float32, "float32 but must be float64"),
        ("expert_time", np.int64, "int64 but must be float64"),
        ("resident_time", np.bool_, "bool but must be a real number"),
        ("path_prob", "S8", "S8 but must be float64"),
    ],
)
def test_wrong_dtype(
    name: str, dtype: Any, wanted: str, arrays: dict[str, Any], tmp_path: Path
) -> None:
    arrays[name] = arrays[name].astype(dtype)
    with pytest.raises(InvalidInputError, match=rf"case\.npz: array '{name}' has dtype .*{wanted}"):
        load_arrays(tmp_path, arrays)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("path_prob", lambda a: a[:-1], r"\(52,\) but parent says that n = 53, so axis 0 .* 53"),
        ("path_prob", lambda a: a[:, None], r"shape \(53, 1\) but must have shape \(n\)"),
        ("experts", lambda a: a[:-1], r"\(52, 4, 4\) but parent says that n = 53"),
        ("experts", lambda a: a[0], r"\(4, 4\) but must have shape \(n, L, k\)"),
        ("n_experts", lambda a: a[None], r"shape \(1,\) but must have shape \(\) \(a scalar\)"),
        ("n_experts", lambda a: a + 1, r"'resident' has shape \(4, 16\) but n_experts .* E = 17"),
        ("resident", lambda a: a.T, r"\(16, 4\) but experts says that L = 4"),
        ("node_time", lambda a: a[:-1], r"\(53,\) but parent says that n = 53, .* have 54 entries"),
        ("node_time", lambda a: np.append(a, 1), r"\(55,\) but parent says that n = 53"),
        ("expert_time", lambda a: a[:, :1], r"\(4, 1\) but n_experts says that E = 16"),
        ("expert_time", lambda a: a[:, 0], r"shape \(4,\) but must have shape \(L, E\)"),
        ("fixed_time", lambda a: a[None], r"must have shape \(\)"),
    ],
)
def test_wrong_shape(
    name: str, change: Any, message: str, arrays: dict[str, Any], tmp_path: Path
) -> None:
    arrays[name] = change(arrays[name])
    with pytest.raises(InvalidInputError, match=rf"case\.npz: array .*{message}"):
        load_arrays(tmp_path, arrays)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("parent", 52, r"parent\[5\] = 52 comes after its child"),
        ("path_prob", np.nan, r"path_prob\[5\] = nan is no probability"),
        ("node_time", -1.0, r"node_time\[5\] = -1.0; times must be >= 0"),
    ],
)
def test_wrong_value_names_the_file(
    name: str, value: Any, message: str, arrays: dict[str, Any], tmp_path: Path
) -> None:
    arrays[name][5] = value
    with pytest.raises(InvalidInputError, match=rf"case\.npz: {message}"):
        load_arrays(tmp_path, arrays)


def test_other_byte_order_and_layout_are_read(arrays: dict[str, Any], tmp_path: Path) -> None:
    expected = load_arrays(tmp_path, arrays)
    swapped = {
        name: np.array(a, dtype=a.dtype.newbyteorder(">"), order="F") for name, a in arrays.items()
    }
    assert_same(load_arrays(tmp_path, swapped), expected)


# ---- JSON by hand


BY_HAND = {
    "parent": [-1, 0, 0],
    "path_prob": [1, 0.8, 0.1],
    "n_experts": 5,
    "experts": [[[0, 1]], [[0, 2]], [[3, 4]]],
    "fixed_time": 1,
    "node_time": 0.01,
    "expert_time": 0.2,
}


def load_text(folder: Path, text: str) -> Instance:
    path = folder / "case.json"
    path.write_text(text)
    return load_instance(path)


def by_hand(folder: Path, **changes: Any) -> Instance:
    data = {k: v for k, v in (BY_HAND | changes).items() if v is not ...}
    return load_text(folder, json.dumps(data))


def test_the_shortest_form(tmp_path: Path) -> None:
    instance = by_hand(tmp_path)
    assert instance.name == "case"
    assert not instance.routing.resident.any()
    assert instance.cost_model.node_time == 0.01
    assert instance.cost_model.resident_time == 0.0
    assert solve_instance(instance).nodes.tolist() == [0, 1]


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = str(instance_json.__doc__)
    instance = load_text(tmp_path, text[text.index("{") : text.index("}") + 1])
    assert instance.name == "three nodes"
    assert instance.routing.resident.tolist() == [[False, False, False, False, True]]
    assert instance.cost_model.node_table(3).tolist() == [0.0, 0.001, 0.001, math.inf]


def test_conditional_probabilities(tmp_path: Path) -> None:
    instance = by_hand(tmp_path, path_prob=..., conditional_prob=[1, 0.5, 0.5], parent=[-1, 0, 1])
    assert instance.tree.path_prob.tolist() == [1.0, 0.5, 0.25]


def test_lists_of_experts_may_differ_in_length(tmp_path: Path) -> None:
    ids = by_hand(tmp_path, experts=[[[0, 1, 2]], [[]], [[4]]]).routing.experts
    assert ids.tolist() == [[[0, 1, 2]], [[-1, -1, -1]], [[4, -1, -1]]]


@pytest.mark.parametrize(
    ("resident", "expected"),
    [
        ([], [False] * 5),
        ([[0, 3], [0, 0]], [True, False, False, True, False]),
        ([[True, False, False, True, False]], [True, False, False, True, False]),
        (None, [False] * 5),
    ],
)
def test_forms_of_resident(resident: Any, expected: list[bool], tmp_path: Path) -> None:
    assert by_hand(tmp_path, resident=resident).routing.resident.tolist() == [expected]


def test_matrix_of_two_experts_is_no_list_of_pairs(tmp_path: Path) -> None:
    kwargs = {"n_experts": 2, "experts": [[[0], [1]]] * 3}
    matrix = by_hand(tmp_path, resident=[[False, True], [True, True]], **kwargs)
    pairs = by_hand(tmp_path, resident=[[0, 1], [1, 1]], **kwargs)
    assert matrix.routing.resident.tolist() == [[False, True], [True, True]]
    assert pairs.routing.resident.tolist() == [[False, True], [False, True]]


def test_forms_of_infinite(tmp_path: Path) -> None:
    cost = by_hand(tmp_path, node_time=[None, 0.1, None, "inf"]).cost_model
    assert cost.node_table(3).tolist() == [math.inf, 0.1, math.inf, math.inf]


def test_forms_of_expert_time(tmp_path: Path) -> None:
    for time in (0.5, [0.5], [[0.5] * 5]):
        cost = by_hand(tmp_path, expert_time=time).cost_model
        assert cost.expert_table(1, 5).tolist() == [[0.5] * 5]


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BY_HAND).encode())
    assert load_instance(path).tree.n_nodes == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parent": ...}, "it lacks 'parent'; the keys are parent, experts,"),
        ({"path_prob": ...}, "give either path_prob or conditional_prob"),
        ({"conditional_prob": [1, 1, 1]}, "give either path_prob or conditional_prob"),
        ({"residents": []}, "it has the unknown key 'residents'; the keys are .* comment"),
        ({"format": "other"}, "format must be 'specfit-instance', got 'other'"),
        ({"version": 2}, "version must be 1, got 2"),
        ({"name": 7}, "name must be a text, got 7"),
        ({"parent": 0}, "parent must be a list, got 0"),
        ({"parent": [-1, 0, 10**30]}, r"parent\[2\] must be a whole number from -1 to"),
        ({"n_experts": 5.0}, "n_experts must be a whole number of at least 1, got 5.0"),
        ({"n_experts": True}, "n_experts must be a whole number of at least 1, got true"),
        ({"n_experts": 4}, r"experts\[2, 0, 1\] = 4 is no expert of 4"),
        ({"experts": []}, "experts must be a list of at least 1, got a list of 0 entries"),
        ({"experts": [[[0]], [[0], [1]], [[0]]]}, r"experts\[1\] has 2 layers but experts\[0\] ha"),
        ({"experts": [[0], [0], [0]]}, r"experts\[0\]\[0\] must be a list, got 0"),
        ({"experts": [[[0.5]]] * 3}, r"experts\[0\]\[0\]\[0\] must be a whole number from -1"),
        ({"experts": [[[True]]] * 3}, r"experts\[0\]\[0\]\[0\] must be a whole number .* got true"),
        ({"experts": [[[2**31]]] * 3}, r"experts\[0\]\[0\]\[0\] must be .* got 2147483648"),
        ({"experts": [[[0]]] * 2}, "the tree has 3 nodes but the routing has 2"),
        ({"resident": [[0, 5]]}, r"resident\[0\] = \[0, 5\] is no expert of 1 layers of 5"),
        ({"resident": [[0, 1, 0, 0, 0]]}, r"resident\[0\] must be a list of 2, got a list of 5"),
        ({"resident": [[True, False]]}, r"resident\[0\] must be a list of 5, got a list of 2 ent"),
        ({"resident": [[0, True]]}, r"resident\[0\]\[1\] must be a whole number"),
        ({"resident": True}, "resident must be a list, got true"),
        ({"fixed_time": "1"}, "fixed_time must be a finite number of seconds .* got '1'"),
        ({"fixed_time": None}, "fixed_time must be a finite number of seconds .* got null"),
        ({"fixed_time": 10**400}, "a number of 401 characters in line 1"),
        ({"node_time": [0, 0.1, True, 0.1]}, r"node_time\[2\] must be a finite number of seconds"),
        ({"node_time": [0, 0.1, "infinite", 0.1]}, r"node_time\[2\] must be a finite number"),
        ({"node_time": [0, 0.1]}, "node_time has 2 entries but the tree has 3 nodes"),
        ({"expert_time": [[0.1, None]]}, r"expert_time\[0\]\[1\] must be a finite .* got null"),
        ({"expert_time": {"a": 1}}, "expert_time must be a finite number .* got an object of 1"),
        ({"resident_time": []}, "resident_time must be a finite number of seconds"),
    ],
)
def test_json_that_is_not_right(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=rf"case\.json: {message}"):
        by_hand(tmp_path, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON, or cut short: .* in line 1, column 1"),
        (json.dumps(BY_HAND)[:-9], "no JSON, or cut short"),
        ("[1, 2]", "it must be an object, got a list of 2 entries"),
        ('{"parent": [], "parent": []}', "the key 'parent' occurs twice in one object; keep one"),
        ('{"node_time": [0, Infinity]}', "Infinity is no JSON number"),
        ('{"fixed_time": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "lists and objects are nested 100000 deep"),
        ('{"fixed_time": ' + "1" * 5000 + "}", "a number of 5000 characters"),
        (
            json.dumps(BY_HAND).replace('"node_time": 0.01', '"node_time": [0, 1, 1e400, 1]'),
            "the number '1e400' is out of range in line 1, column",
        ),
    ],
)
def test_text_that_is_no_instance(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=rf"case\.json: .*{message}"):
        load_text(tmp_path, text)


def test_lists_that_would_be_padded_to_gigabytes(tmp_path: Path) -> None:
    experts = [[[0] * 5000], *[[[]]] * 5000]
    with pytest.raises(InvalidInputError, match="has 5001 nodes of 1 layers of up to 5000 ids"):
        by_hand(tmp_path, experts=experts, parent=[-1, *[0] * 5000], path_prob=[1.0] * 5001)


def test_json_is_not_written_where_it_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_json, "MAX_BYTES", 100)
    with pytest.raises(InvalidInputError, match=r"a\.json: .* at most 100 are read; save it as"):
        save_instance(tmp_path / "a.json", small())
    assert os.listdir(tmp_path) == []


def test_archive_named_json(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(FIXTURES[0].read_bytes())
    with pytest.raises(InvalidInputError, match=r"case\.json: not UTF-8 text: "):
        load_instance(path)
