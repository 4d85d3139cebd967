"""``specfit export`` as a user runs it."""

from __future__ import annotations

import json

import pytest

from specfit_opt.cli import main
from specfit_opt.files import load_instance
from specfit_opt.files.export import export
from specfit_opt.solve import solve_instance


@pytest.mark.parametrize("extension", ["lp", "mps"])
def test_the_model_is_that_of_the_library(extension, specfit, tmp_path, capsys):
    tree = tmp_path / "tree.npz"
    assert main(["make-instance", "tiny", "--nodes", "8", "-o", str(tree)]) == 0
    capsys.readouterr()
    instance = load_instance(tree)

    done = specfit("export", tree, "-o", f"optimum.{extension}", "--json")
    assert done.returncode == 0, done.stderr
    rate = solve_instance(instance).throughput
    assert json.loads(done.stdout)["rate"] == rate
    export(tmp_path / f"expected.{extension}", instance, rate)
    written = (tmp_path / f"optimum.{extension}").read_text()
    assert written == (tmp_path / f"expected.{extension}").read_text()

    arguments = ["export", str(tree), "--rate", "2.5", "--max-nodes", "4"]
    assert main([*arguments, "-o", str(tmp_path / f"given.{extension}")]) == 0
    assert "at 2.5 tokens/s" in capsys.readouterr().out
    export(tmp_path / f"expected.{extension}", instance, 2.5, max_nodes=4)
    written = (tmp_path / f"given.{extension}").read_text()
    assert written == (tmp_path / f"expected.{extension}").read_text()
