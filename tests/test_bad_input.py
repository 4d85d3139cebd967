"""Every kind of bad input is refused with a message that says what, where and how to mend it."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    SpecfitError,
    evaluate,
    load_instance,
    load_trace,
    save_instance,
    solve,
)

LOADERS = [load_instance, load_trace]


def refused(message: str) -> Any:
    """Expect an InvalidInputError whose message matches the regular expression."""
    return pytest.raises(InvalidInputError, match=message)


def test_errors_are_value_errors_of_the_project() -> None:
    assert issubclass(InvalidInputError, ValueError)
    assert issubclass(InvalidInputError, SpecfitError)


# ---- path probabilities


def test_nan_probability() -> None:
    with refused(r"path_prob\[1\] = nan is no probability; it must be in \[0, 1\]"):
        DraftTree([-1, 0], [1.0, math.nan])


def test_nan_conditional_probability() -> None:
    with refused(r"prob\[1\] = nan is no probability"):
        DraftTree.from_conditional([-1, 0], [1.0, math.nan])


def test_negative_probability() -> None:
    with refused(r"path_prob\[2\] = -0.25 is no probability"):
        DraftTree([-1, 0, 0], [1.0, 0.5, -0.25])


def test_probability_above_one() -> None:
    with refused(r"path_prob\[1\] = 1.5 is no probability"):
        DraftTree([-1, 0], [1.0, 1.5])
    with refused(r"prob\[1\] = 1.5 is no probability"):
        DraftTree.from_conditional([-1, 0], [1.0, 1.5])


def test_rising_probability() -> None:
    with refused(
        r"path_prob\[2\] = 0.75 exceeds that of its parent 1 \(0.5\).*from_conditional builds them"
    ):
        DraftTree([-1, 0, 1], [1.0, 0.5, 0.75])


def test_probability_rising_by_more_than_rounding() -> None:
    DraftTree([-1, 0, 1], [1.0, 0.5, 0.5 + 0.9e-6])
    with refused("exceeds that of its parent"):
        DraftTree([-1, 0, 1], [1.0, 0.5, 0.5 + 1.1e-6])


def test_root_below_one() -> None:
    with refused(r"path_prob\[0\] = 0.9 but node 0 is a root; .* its probability is 1"):
        DraftTree([-1, 0], [0.9, 0.5])
    with refused(r"path_prob\[0\] = 0.5 but node 0 is a root"):
        DraftTree.from_conditional([-1], [0.5])


def test_probabilities_that_are_no_numbers() -> None:
    with refused("path_prob must hold real numbers, got dtype <U3"):
        DraftTree([-1, 0], ["1", "0.5"])
    with refused("path_prob must hold real numbers, got dtype complex128"):
        DraftTree([-1, 0], [1.0, 0.5j])


# ---- parents


def test_cycle() -> None:
    with refused(r"cycle through the nodes \[2, 3, 4\]; every path must end at a root"):
        DraftTree([-1, 0, 4, 2, 3], [1.0] * 5)


def test_own_parent() -> None:
    with refused(r"cycle through the nodes \[1\]"):
        DraftTree([-1, 1], [1.0, 1.0])


def test_parent_after_its_child() -> None:
    with refused(r"parent\[1\] = 2 comes after its child; order the nodes so that parents"):
        DraftTree([-1, 2, 0], [1.0, 0.5, 0.5])


def test_no_root() -> None:
    with refused("the tree has no root; give the last committed token parent -1"):
        DraftTree([1, 0], [1.0, 1.0])


def test_no_node() -> None:
    with refused("the tree has no nodes"):
        DraftTree(np.zeros(0, dtype=np.int32), np.zeros(0))


def test_parent_outside() -> None:
    with refused(r"parent\[1\] = 2 is no node of a tree of 2; use -1 for a root"):
        DraftTree([-1, 2], [1.0, 1.0])
    with refused(r"parent\[1\] = -2 is no node"):
        DraftTree([-1, -2], [1.0, 1.0])
    with refused(r"parent\[0\] = 4294967295 does not fit int32"):
        DraftTree(np.array([2**32 - 1], dtype=np.uint32), [1.0])


def test_parents_that_are_no_integers() -> None:
    with refused("parent must hold integers, got dtype float64"):
        DraftTree([-1.0, 0.0], [1.0, 0.5])
    with refused("parent must hold integers, got dtype bool"):
        DraftTree([True], [1.0])
    with refused("parent is not a rectangular array"):
        DraftTree([-1, [0]], [1.0, 0.5])  # type: ignore[list-item]


def test_wrong_depth() -> None:
    with refused(r"depth\[1\] = 2 but the path to the root has 1 edges; omit depth"):
        DraftTree([-1, 0], [1.0, 0.5], depth=[0, 2])


# ---- experts


def test_expert_id_too_large() -> None:
    with refused(r"experts\[1, 0, 1\] = 4 is no expert of 4 \(ids are 0 to 3, -1 pads\)"):
        ExpertRouting([[[0, 1]], [[2, 4]]], 4)


def test_expert_id_below_the_padding() -> None:
    with refused(r"experts\[0, 1, 0\] = -2 is no expert"):
        ExpertRouting([[[0], [-2]]], 4)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64])
def test_largest_id_of_a_dtype(dtype: type) -> None:
    # In particular, the largest unsigned number must not turn into -1, which pads.
    with refused(r"experts\[0, 0, 0\] = \d+ is no expert of 4"):
        ExpertRouting(np.full((1, 1, 1), np.iinfo(dtype).max, dtype=dtype), 4)


def test_duplicate_expert_ids_count_once() -> None:
    tree = DraftTree([-1, 0], [1.0, 0.5])
    cost = CostModel(1.0, 0.25, [[0.5, 0.25, 0.125]], 0.0625)
    resident = np.array([[False, False, True]])
    single = ExpertRouting([[[0, 2, -1]], [[0, 1, -1]]], 3, resident)
    double = ExpertRouting([[[0, 2, 0]], [[1, 1, 0]]], 3, resident)
    for nodes in ([0], [0, 1]):
        one = evaluate(tree, single, cost, nodes)
        two = evaluate(tree, double, cost, nodes)
        assert one.to_dict() == two.to_dict()
    assert solve(tree, single, cost).to_dict() == solve(tree, double, cost).to_dict()


def test_experts_of_wrong_rank() -> None:
    with refused(r"experts must have shape \(nodes, layers, slots\), got \(1, 2\)"):
        ExpertRouting([[0, 1]], 4)
    with refused("experts is not a rectangular array"):
        ExpertRouting([[[0]], [[1, 2]]], 4)
    with refused("experts has no layers"):
        ExpertRouting(np.zeros((2, 0, 1), dtype=np.int16), 4)


def test_experts_that_are_no_integers() -> None:
    with refused("experts must hold integers, got dtype float64"):
        ExpertRouting([[[0.0]]], 4)


@pytest.mark.parametrize("n_experts", [0, -1, 2.0, "4", None])
def test_number_of_experts(n_experts: Any) -> None:
    with refused("n_experts must be a whole number of at least 1"):
        ExpertRouting([[[0]]], n_experts)


# ---- shapes that disagree


def test_one_probability_per_node() -> None:
    with refused(r"parent has shape \(2,\) but path_prob has shape \(3,\)"):
        DraftTree([-1, 0], [1.0, 0.5, 0.5])
    with refused(r"parent has shape \(2,\) but prob has shape \(1,\)"):
        DraftTree.from_conditional([-1, 0], [1.0])
    with refused(r"parent has shape \(2,\) but depth has shape \(1,\)"):
        DraftTree([-1, 0], [1.0, 0.5], depth=[0])


def test_resident_of_another_shape() -> None:
    with refused(r"resident has shape \(2, 1\); .* \(layers, experts\) = \(1, 2\)"):
        ExpertRouting([[[0]]], 2, np.zeros((2, 1), dtype=np.bool_))
    with refused("resident must hold bool, got dtype int64"):
        ExpertRouting([[[0]]], 2, [[0, 1]])


TREE = DraftTree([-1, 0], [1.0, 0.5])
ROUTING = ExpertRouting([[[0], [1]], [[1], [2]]], 3)
COST = CostModel(1.0, 0.1, 0.1)


def test_routing_of_another_number_of_nodes() -> None:
    for call in (
        lambda: solve(DraftTree([-1], [1.0]), ROUTING, COST),
        lambda: evaluate(DraftTree([-1], [1.0]), ROUTING, COST, [0]),
        lambda: Instance(DraftTree([-1], [1.0]), ROUTING, COST),
    ):
        with refused("the tree has 1 nodes but the routing has 2"):
            call()


def test_expert_times_of_another_shape() -> None:
    with refused(r"expert_time has shape \(3,\) but the routing has 2 layers of 3 experts"):
        solve(TREE, ROUTING, CostModel(1.0, 0.1, [0.1] * 3))
    with refused(r"expert_time has shape \(3, 2\) but the routing has 2 layers of 3 experts"):
        solve(TREE, ROUTING, CostModel(1.0, 0.1, np.ones((3, 2))))
    with refused(r"shape \(L,\) or \(L, E\), got shape \(1, 1, 1\)"):
        CostModel(1.0, 0.1, [[[0.1]]])
    with refused("expert_time is not a rectangular array"):
        CostModel(1.0, 0.1, [[0.1, 0.2], [0.3]])  # type: ignore[list-item]


def test_parts_in_the_wrong_order() -> None:
    with refused("expected a DraftTree, an ExpertRouting and a CostModel in this order, got Exp"):
        solve(ROUTING, TREE, COST)  # type: ignore[arg-type]


# ---- tables of node time


def test_table_too_short() -> None:
    with refused(
        "node_time has 2 entries but the tree has 2 nodes; .* needs at least 3 .inf for sizes"
    ):
        solve(TREE, ROUTING, CostModel(1.0, [0.0, 0.1], 0.1))


def test_nan_in_the_table() -> None:
    with refused(r"node_time\[2\] = nan; times must be >= 0 seconds"):
        CostModel(1.0, [0.0, 0.1, math.nan], 0.1)


def test_table_of_wrong_rank() -> None:
    with refused(r"a table indexed by node count, got shape \(1, 2\)"):
        CostModel(1.0, [[0.0, 0.1]], 0.1)
    with refused(r"a table indexed by node count, got shape \(1,\)"):
        CostModel(1.0, [0.0], 0.1)


def test_all_sizes_forbidden() -> None:
    with refused("node_time forbids every size .all entries are inf."):
        CostModel(1.0, [0.0, math.inf, math.inf], 0.1)


def test_all_sizes_of_the_tree_forbidden() -> None:
    # Size 3 is allowed, but no subtree of two nodes has it.
    with refused("node_time forbids every size from 1 .the roots alone. to 2 .the whole tree."):
        solve(TREE, ROUTING, CostModel(1.0, [0.0, math.inf, math.inf, 0.5], 0.1))


def test_all_sizes_from_the_roots_up_forbidden() -> None:
    forest = DraftTree([-1, -1], [1.0, 1.0])
    with refused(r"node_time forbids every size from 2 \(the roots alone\) to 2"):
        solve(forest, ROUTING, CostModel(1.0, [0.0, 0.1, math.inf], 0.1))


def test_all_sizes_up_to_max_nodes_forbidden() -> None:
    cost = CostModel(1.0, [0.0, math.inf, 0.1], 0.1)
    assert solve(TREE, ROUTING, cost).n_selected == 2
    with refused("node_time forbids every size from 1 to max_nodes = 1"):
        solve(TREE, ROUTING, cost, max_nodes=1)


# ---- times


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_times_out_of_range(value: float) -> None:
    with refused("fixed_time must be a finite number of seconds"):
        CostModel(value, 0.1, 0.1)
    with refused("node_time must be a finite number of seconds per node"):
        CostModel(1.0, value, 0.1)
    with refused("expert_time must be a finite number of seconds per expert"):
        CostModel(1.0, 0.1, value)
    with refused("resident_time must be a finite number of seconds"):
        CostModel(1.0, 0.1, 0.1, value)
    with refused(r"expert_time\[1\] = .*; times must be finite and >= 0 seconds"):
        CostModel(1.0, 0.1, [0.1, value])
    with refused(r"expert_time\[0, 1\] = .*; times must be finite"):
        CostModel(1.0, 0.1, [[0.1, value]])


def test_negative_time_in_the_table() -> None:
    with refused(r"node_time\[1\] = -0.1; times must be >= 0 seconds"):
        CostModel(1.0, [0.0, -0.1], 0.1)


@pytest.mark.parametrize("value", ["1", b"1", None, [1.0], 1j])
def test_times_that_are_no_numbers(value: Any) -> None:
    with refused(
        "fixed_time must be a finite number of seconds of at least 0 and at most 1e.12, got"
    ):
        CostModel(value, 0.1, 0.1)


def test_pass_without_duration() -> None:
    with refused("both zero, so throughput has no bound; give the fixed time"):
        solve(TREE, ROUTING, CostModel(0.0, 0.0, 0.1))
    with refused("both zero"):
        solve(TREE, ROUTING, CostModel(0.0, [0.0, 0.1, 0.0], 0.1))


# ---- arguments of solve


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method 'magic' is unknown; the methods are exact, "),
        ({"rate": -1.0}, "rate must be a finite number of tokens per second .*, got -1.0"),
        ({"rate": math.nan}, "rate must be a finite number"),
        (
            {"max_nodes": 0},
            "max_nodes, which counts the roots, must be",
        ),
        (
            {"max_nodes": 1.5},
            "max_nodes, which counts the roots, must be",
        ),
        ({"time_limit": 0.0}, "time_limit must be a number of seconds above 0"),
        ({"time_limit": math.nan}, "time_limit must be a number of seconds above 0"),
        ({"depth": 3}, "method 'exact' has no option 'depth'"),
    ],
)
def test_arguments_of_solve(options: dict[str, Any], message: str) -> None:
    with refused(message):
        solve(TREE, ROUTING, COST, **options)


# ---- files


@pytest.fixture
def instance_file(tmp_path: Path) -> Path:
    path = tmp_path / "good.npz"
    save_instance(path, Instance(TREE, ROUTING, COST))
    return path


def test_truncated_instance(instance_file: Path) -> None:
    content = instance_file.read_bytes()
    loaded = 0
    for length in range(len(content)):
        instance_file.write_bytes(content[:length])
        with refused(rf"{instance_file.name}: .*(truncated|empty|no \.npz archive).*save_instance"):
            load_instance(instance_file)
        loaded += 1
    assert loaded > 1000
    instance_file.write_bytes(content)
    load_instance(instance_file)


def test_damaged_instance(instance_file: Path) -> None:
    # Whatever a flipped byte does, it is an error of ours or harmless, never another exception.
    content = bytearray(instance_file.read_bytes())
    seen = 0
    for at in range(0, len(content), 3):
        content[at] ^= 0xFF
        instance_file.write_bytes(content)
        content[at] ^= 0xFF
        try:
            load_instance(instance_file)
        except InvalidInputError as error:
            assert instance_file.name in str(error)  # noqa: PT017
            seen += 1
    assert seen > 300


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"parent,path_prob\n-1,1\n", r"no \.npz archive but something else .*starts with b'pare'"),
        (b"\x93NUMPY\x01\x00", r"no \.npz archive but something else"),
        (b"PK\x03\x04 and nothing else", "truncated or damaged"),
        (pickle.dumps({"parent": [-1]}), "Python pickle, which is never loaded"),
    ],
    ids=["empty", "csv", "npy", "stub", "pickle"],
)
def test_foreign_file(
    load: Callable[[Path], object], content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "foreign.npz"
    path.write_bytes(content)
    with refused(rf"foreign\.npz: .*{message}"):
        load(path)


@pytest.mark.parametrize("load", LOADERS)
def test_foreign_archive(load: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, weights=np.ones(3))
    with refused(r"weights\.npz: lacks the arrays .*'parent'.*file holds the arrays .*parent"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "not an array")
    with refused(r"weights\.npz: lacks the arrays"):
        load(path)


class Bomb:
    """Fails the test if anybody unpickles it."""

    exploded = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return (explode, ())


def explode() -> None:
    Bomb.exploded = True


def test_pickled_array(instance_file: Path) -> None:
    arrays = dict(np.load(instance_file))
    arrays["experts"] = np.array([Bomb()], dtype=object)
    np.savez(instance_file, **arrays)
    with refused(r"array 'experts' holds pickled Python objects.*save it as a plain numeric array"):
        load_instance(instance_file)
    assert not Bomb.exploded


def test_member_that_is_no_array(instance_file: Path) -> None:
    with zipfile.ZipFile(instance_file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["parent.npy"] = b"-1, 0"
    with zipfile.ZipFile(instance_file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with refused("member 'parent' is no NumPy array"):
        load_instance(instance_file)


def test_array_of_impossible_size(instance_file: Path) -> None:
    with zipfile.ZipFile(instance_file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i4", "fortran_order": False, "shape": (2**60,)}
    )
    members["parent.npy"] = header.getvalue()
    with zipfile.ZipFile(instance_file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with refused("array 'parent' does not begin with a plain dtype and a shape"):
        load_instance(instance_file)


def test_unknown_extension(tmp_path: Path) -> None:
    for name in ("tree.csv", "tree", "tree.npz.gz"):
        path = tmp_path / name
        path.write_text("")
        with refused(r"is no instance format; use \.npz or \.json"):
            load_instance(path)
        with refused(r"is no instance format; use \.npz or \.json"):
            save_instance(path, Instance(TREE, ROUTING, COST))


@pytest.mark.parametrize("load", LOADERS)
def test_file_that_is_not_there(load: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        load(tmp_path / "nowhere.npz")
