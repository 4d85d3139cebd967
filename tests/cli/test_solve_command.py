"""``specfit solve`` as a user runs it."""

from __future__ import annotations

import json

import pytest

from specfit_opt.cli import main
from specfit_opt.cli.inputs import parse_options
from specfit_opt.data import example_instances
from specfit_opt.files import load_instance
from specfit_opt.solution import evaluate
from specfit_opt.solve import solve_instance


@pytest.fixture
def tree(tmp_path, capsys):
    path = tmp_path / "tree.npz"
    assert main(["make-instance", "tiny", "--nodes", "12", "--seed", "3", "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def test_one_file_prints_the_summary_and_the_nodes(specfit, tree):
    done = specfit("solve", tree)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    solution = solve_instance(load_instance(tree))
    assert solution.summary() in done.stdout
    nodes = done.stdout.split("nodes            ")[1]
    assert [int(v) for v in nodes.split()] == solution.nodes.tolist()


def test_json_holds_every_solution_under_its_file_name(specfit, tree):
    done = specfit("solve", tree, tree, "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first["file"] == second["file"] == str(tree)
    instance = load_instance(tree)
    solution = solve_instance(instance)
    assert first["nodes"] == solution.nodes.tolist()
    assert first["throughput"] == solution.throughput
    assert first["status"] == "optimal"
    parts = (instance.tree, instance.routing, instance.cost_model)
    assert evaluate(*parts, first["nodes"]).throughput == first["throughput"]


def test_without_a_file_the_example_is_solved_and_said_to_be(specfit):
    done = specfit("solve")
    assert done.returncode == 0, done.stderr
    assert "using the recorded example" in done.stderr
    for instance in example_instances():
        assert f"example:{instance.name}" in done.stdout
    assert done.stdout.count("optimal") == len(example_instances())


def test_arguments_reach_the_solver(tree, capsys):
    instance = load_instance(tree)

    def solved(*arguments: str) -> dict[str, object]:
        assert main(["solve", str(tree), "--json", *arguments]) == 0
        (solution,) = json.loads(capsys.readouterr().out)
        return solution

    rate = 0.5 * solve_instance(instance).throughput
    by_rate = solved("--rate", repr(rate))
    assert by_rate["rate"] == rate
    assert by_rate["objective"] == solve_instance(instance, rate=rate).objective
    assert len(solved("--rate", "0", "--max-nodes", "3")["nodes"]) == 3
    eagle = solved("--method", "eagle", "--option", "budget=5")
    assert eagle["method"] == "eagle"
    assert len(eagle["nodes"]) == 5


@pytest.mark.parametrize("pair", ["solver=gscip", 'solver="gscip"'])
def test_a_text_needs_no_quotes(pair):
    assert parse_options([pair]) == {"solver": "gscip"}


def test_a_table_for_several_files_by_rate(tree, capsys):
    assert main(["solve", str(tree), str(tree), "--rate", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "surplus" in lines[0]
    assert len(lines) == 4
    assert lines[2] == lines[3]


def test_a_bound_that_json_cannot_hold_becomes_null(capsys, monkeypatch):
    from specfit_opt.cli import output

    output.print_json({"bound": float("inf"), "gap": [float("nan")], "n": 1})
    assert json.loads(capsys.readouterr().out) == {"bound": None, "gap": [None], "n": 1}


@pytest.mark.parametrize("extension", ["png", "svg", "pdf"])
def test_plot_writes_a_picture(extension, tree, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="drawing needs the extra 'plot'")
    path = tmp_path / f"tree.{extension}"
    assert main(["solve", str(tree), "--plot", str(path)]) == 0
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[extension]
    assert path.read_bytes().startswith(start)
    first = path.read_bytes()
    assert main(["solve", str(tree), "--plot", str(path)]) == 0
    assert path.read_bytes() == first, "the same picture must give the same bytes"


def test_plot_without_a_file_draws_the_first_example_and_says_so(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="drawing needs the extra 'plot'")
    assert main(["solve", "--plot", str(tmp_path / "tree.png")]) == 0
    captured = capsys.readouterr()
    name = example_instances()[0].name
    assert f"--plot draws one tree: example:{name} alone" in captured.err
    assert captured.out.startswith(f"example:{name}")


def test_plot_without_matplotlib_names_the_extra_and_writes_nothing(specfit, tree, tmp_path):
    done = specfit("solve", tree, "--plot", "tree.png", hide=["matplotlib"])
    assert done.returncode == 1
    assert "specfit[plot]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "tree.png").exists()
