"""Exported models, read back by other people's solvers, have the optimum of the problem."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from strategies import KINDS, random_instance, random_max_nodes, random_rate

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    evaluate,
    export,
    load_instance,
)

DATA = Path(__file__).resolve().parents[1] / "data"
SUFFIXES = [".lp", ".mps"]
TINY = [
    "005-tiny-concave-forest",
    "007-mixtral-8x7b-affine",
    "017-tiny-step16",
    "023-tiny-step8",
    "029-tiny-affine",
    "035-tiny-affine-forest",
    "041-tiny-budget",
]


def ortools_mps(path: Path) -> tuple[float, dict[str, float]]:
    """Solve an MPS file with SCIP through OR-Tools' reader."""
    from ortools.linear_solver.python import model_builder

    model = model_builder.Model()
    assert model.import_from_mps_file(str(path))
    solver = model_builder.Solver("scip")
    assert solver.solve(model) == model_builder.SolveStatus.OPTIMAL
    return solver.objective_value, {v.name: solver.value(v) for v in model.get_variables()}


def highs(path: Path) -> tuple[float, dict[str, float]]:
    """Solve an LP or MPS file with HiGHS, which SciPy brings along without a public reader."""
    core = pytest.importorskip("scipy.optimize._highspy._core")
    solver = core._Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", 0.0)
    assert solver.readModel(str(path)) == core.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() == core.HighsModelStatus.kOptimal
    values = dict(zip(solver.getLp().col_names_, solver.getSolution().col_value, strict=True))
    return solver.getInfo().objective_function_value, values


READERS: list[tuple[str, Callable[[Path], tuple[float, dict[str, float]]]]] = [
    (".mps", ortools_mps),
    (".mps", highs),
    (".lp", highs),
]
READER_IDS = ["ortools-mps", "highs-mps", "highs-lp"]


def best_surplus(instance: Instance, rate: float, max_nodes: int | None) -> float:
    """Return the best surplus over all closed sets, by enumeration."""
    tree = instance.tree
    parts = (tree, instance.routing, instance.cost_model)
    table = instance.cost_model.node_table(tree.n_nodes)
    free = np.flatnonzero(tree.parent >= 0).tolist()
    best = -math.inf
    for bits in itertools.product([False, True], repeat=len(free)):
        nodes = set(tree.roots.tolist())
        for v, chosen in zip(free, bits, strict=True):
            if chosen and int(tree.parent[v]) in nodes:
                nodes.add(v)
            elif chosen:
                break
        else:
            size = len(nodes)
            if math.isfinite(table[size]) and size <= (max_nodes or size):
                best = max(best, evaluate(*parts, nodes, rate=rate).objective)
    return best


@pytest.mark.parametrize(("suffix", "read"), READERS, ids=READER_IDS)
@pytest.mark.parametrize("kind", KINDS)
def test_optimum_is_that_of_the_problem(
    kind: str, suffix: str, read: Callable[[Path], tuple[float, dict[str, float]]], tmp_path: Path
) -> None:
    path = tmp_path / f"model{suffix}"
    for seed in range(6):
        rng = np.random.default_rng(seed)
        instance = random_instance(rng, kind=kind, n=int(rng.integers(1, 9)))
        rate, max_nodes = random_rate(rng, instance), random_max_nodes(rng, instance)
        export(path, instance, rate, max_nodes=max_nodes)
        value, columns = read(path)
        assert value == pytest.approx(best_surplus(instance, rate, max_nodes), abs=1e-6)
        # The names lead back to the nodes.
        nodes = [v for v in range(len(instance.tree)) if columns[f"x_{v}"] > 0.5]
        parts = (instance.tree, instance.routing, instance.cost_model)
        assert evaluate(*parts, nodes, rate=rate).objective == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("suffix", "read"), READERS, ids=READER_IDS)
@pytest.mark.parametrize("name", TINY)
def test_the_optimum_is_0_at_the_best_rate(
    name: str, suffix: str, read: Callable[[Path], tuple[float, dict[str, float]]], tmp_path: Path
) -> None:
    instance = load_instance(DATA / f"{name}.npz")
    best = json.loads((DATA / "optima.json").read_text())[name]
    path = tmp_path / f"model{suffix}"
    export(path, instance, best["throughput"])
    value, _ = read(path)
    assert value == pytest.approx(0.0, abs=1e-6)
    # Not so at another rate: the test can fail.
    export(path, instance, best["throughput"] * 1.01)
    value, _ = read(path)
    assert value < -1e-3


INSTANCE = Instance(
    DraftTree([-1, 0, 0], [1.0, 0.5, 0.25]),
    ExpertRouting([[[0, 1]], [[1, 1]], [[2, -1]]], 4, np.array([[True, False, False, False]])),
    CostModel(1.0, 0.125, [[0.5, 0.25, 2.0, 1.0]]),
    name="three\nnodes, ü",
)


def test_lp_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "model.lp"
    export(path, INSTANCE, 0.5)
    lines = path.read_text().splitlines()
    comment = [line for line in lines if line.startswith("\\")]
    assert "instance: three nodes, \\xfc" in comment[1]
    assert any("rate = 0.5 tokens per second" in line for line in comment)
    assert lines[len(comment) :] == [
        "Maximize",
        " surplus: + 0.9375 x_0 + 0.4375 x_1 + 0.1875 x_2 - 0.125 y_0_1 - 1.0 y_0_2 - 0.5 constant",
        "Subject To",
        " p_1: x_1 - x_0 <= 0",
        " p_2: x_2 - x_0 <= 0",
        " u_0_0_1: x_0 - y_0_1 <= 0",
        " u_1_0_1: x_1 - y_0_1 <= 0",
        " u_2_0_2: x_2 - y_0_2 <= 0",
        "Bounds",
        " x_0 = 1",
        " 0 <= y_0_1 <= 1",
        " 0 <= y_0_2 <= 1",
        " constant = 1",
        "Binaries",
        " x_1",
        " x_2",
        "End",
    ]


def test_mps_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "model.mps"
    table = Instance(
        DraftTree([-1, 0], [1.0, 0.5]),
        ExpertRouting([[[0]], [[0]]], 1),
        CostModel(1.0, [0.0, 0.25, 0.5], 0.5),
    )
    export(path, table, 1.0)
    lines = path.read_text().splitlines()
    comment = [line for line in lines if line.startswith("*")]
    assert "instance: unnamed" in comment[1]
    assert any("s_<size>" in line for line in comment)
    assert [line.split() for line in lines[len(comment) :]] == [
        line.split()
        for line in """NAME specfit
            OBJSENSE
            MAX
            ROWS
            N surplus
            L p_1
            L u_0_0_0
            L u_1_0_0
            E size
            E one_size
            COLUMNS
            x_0 surplus 1.0
            x_0 p_1 -1.0
            x_0 u_0_0_0 1.0
            x_0 size 1.0
            M1 'MARKER' 'INTORG'
            x_1 surplus 0.5
            x_1 p_1 1.0
            x_1 u_1_0_0 1.0
            x_1 size 1.0
            M2 'MARKER' 'INTEND'
            y_0_0 surplus -0.5
            y_0_0 u_0_0_0 -1.0
            y_0_0 u_1_0_0 -1.0
            M3 'MARKER' 'INTORG'
            s_1 surplus -0.25
            s_1 size -1.0
            s_1 one_size 1.0
            s_2 surplus -0.5
            s_2 size -2.0
            s_2 one_size 1.0
            M5 'MARKER' 'INTEND'
            constant surplus -1.0
            RHS
            RHS one_size 1.0
            BOUNDS
            FX BOUND x_0 1
            BV BOUND x_1
            UP BOUND y_0_0 1
            BV BOUND s_1
            BV BOUND s_2
            FX BOUND constant 1
            ENDATA""".splitlines()
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_lines_are_short_ascii(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    export(path, load_instance(DATA / "022-deepseek-v3-affine.npz"), 0.01)
    text = path.read_bytes().decode("ascii")
    assert max(map(len, text.splitlines())) <= 255


def test_only_prices_have_columns(tmp_path: Path) -> None:
    # Expert 0 is resident: a column appears once residents cost something.
    export(tmp_path / "a.lp", INSTANCE, 0.5)
    assert "y_0_0" not in (tmp_path / "a.lp").read_text()
    cost = CostModel(1.0, 0.125, [[0.5, 0.25, 2.0, 1.0]], resident_time=0.125)
    export(tmp_path / "b.lp", Instance(INSTANCE.tree, INSTANCE.routing, cost), 0.5)
    assert "- 0.0625 y_0_0" in (tmp_path / "b.lp").read_text()


def test_forbidden_sizes_have_no_column(tmp_path: Path) -> None:
    cost = CostModel(1.0, [0.0, math.inf, 0.25, math.inf], 0.5)
    export(tmp_path / "a.mps", Instance(INSTANCE.tree, INSTANCE.routing, cost), 0.5)
    assert set(re.findall(r"\bs_\d+", (tmp_path / "a.mps").read_text())) == {"s_2"}


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"'\.txt' is no model format; use \.lp or \.mps"):
        export(tmp_path / "model.txt", INSTANCE, 1.0)
    with pytest.raises(InvalidInputError, match="expected an Instance, got float"):
        export(tmp_path / "model.lp", 1.0, INSTANCE)  # type: ignore[arg-type]
    for rate in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidInputError, match="rate must be a finite number"):
            export(tmp_path / "model.lp", INSTANCE, rate)
    with pytest.raises(
        InvalidInputError, match="rate must be a number of tokens per second; the ratio"
    ):
        export(tmp_path / "model.lp", INSTANCE, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="max_nodes, which counts the roots, must be"):
        export(tmp_path / "model.lp", INSTANCE, 1.0, max_nodes=0)
    assert not list(tmp_path.iterdir())
