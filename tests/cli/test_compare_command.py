"""``specfit compare`` as a user runs it."""

from __future__ import annotations

import json

import pytest

from specfit_opt.cli import main
from specfit_opt.methods import METHODS


@pytest.fixture
def trees(tmp_path, capsys):
    paths = []
    for seed, nodes in ((1, 10), (2, 60)):
        path = tmp_path / f"tree-{nodes}.npz"
        arguments = ["make-instance", "tiny", "--nodes", str(nodes), "--seed", str(seed)]
        assert main([*arguments, "-o", str(path)]) == 0
        paths.append(path)
    capsys.readouterr()
    return paths


def test_every_method_stands_in_the_table_of_every_instance(specfit, trees):
    done = specfit("compare", *trees)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    small, large, overall = done.stdout.split("\n\n")
    for table in (small, large, overall):
        assert [line.split()[0] for line in table.splitlines()[3:]] == list(METHODS)
    assert "brute    not run: " in large
    assert "brute    not run: " not in small
    assert overall.startswith("all 2 instances")


def test_json_never_puts_a_method_above_the_optimum(trees, capsys):
    assert main(["compare", *map(str, trees), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["file"] for entry in document] == [str(path) for path in trees]
    for entry in document:
        assert entry["reference_is_optimal"]
        results = {result["method"]: result for result in entry["results"]}
        assert list(results) == list(METHODS)
        assert results["exact"]["throughput"] == entry["reference"]
        for result in results.values():
            if "skipped" in result:
                continue
            share = result["throughput"] / entry["reference"]
            assert result["of_reference"] == share
            assert 0.0 < share <= 1.0 + 1e-9
            assert result["seconds"] > 0.0


def test_by_rate_the_distance_to_the_optimum_is_in_tokens(trees, capsys):
    assert main(["compare", str(trees[0]), "--rate", "2", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    for result in entry["results"]:
        if "skipped" not in result:
            assert result["below_reference"] == entry["reference"] - result["objective"]
            assert result["below_reference"] >= -1e-9
    assert main(["compare", str(trees[0]), "--rate", "2"]) == 0
    assert "below optimum" in capsys.readouterr().out


def test_chosen_methods_stand_beside_exact(trees, capsys):
    assert main(["compare", str(trees[0]), "--method", "root", "--method", "eagle"]) == 0
    rows = capsys.readouterr().out.splitlines()[3:]
    assert [row.split()[0] for row in rows if row] == ["exact", "eagle", "root"]


def test_a_method_whose_extra_is_missing_is_listed_as_such(specfit, trees):
    done = specfit("compare", trees[0], hide=["ortools"])
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("mip")]
    assert "specfit[mip]" in row
    assert "exact       100.00%" in done.stdout


def test_without_a_file_the_example_is_compared(specfit):
    done = specfit("compare", "--json", "--method", "greedy")
    assert done.returncode == 0, done.stderr
    assert "using the recorded example" in done.stderr
    document = json.loads(done.stdout)
    assert all(entry["file"].startswith("example:") for entry in document)
