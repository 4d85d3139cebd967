"""``specfit make-instance`` as a user runs it."""

from __future__ import annotations

import json

import numpy as np

from specfit_opt.cli import main
from specfit_opt.files import load_instance
from specfit_opt.generate import KINDS, generate


def test_the_file_holds_what_the_library_generates(specfit, tmp_path):
    done = specfit(
        "make-instance", "qwen3-30b-a3b", "--seed", "7", "--nodes", "20", "--top-k", "4",
        "--node-time", "convex", "--resident", "0.25", "-o", "x.npz",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = generate(
        "qwen3-30b-a3b", seed=7, nodes=20, top_k=4, node_time="convex", resident=0.25
    )
    assert done.stdout.startswith(f"x.npz: {expected.name}, 20 nodes")
    written = load_instance(tmp_path / "x.npz")
    np.testing.assert_array_equal(written.tree.path_prob, expected.tree.path_prob)
    np.testing.assert_array_equal(written.routing.experts, expected.routing.experts)
    np.testing.assert_array_equal(written.routing.resident, expected.routing.resident)
    np.testing.assert_array_equal(
        written.cost_model.node_table(20), expected.cost_model.node_table(20)
    )


def test_json_says_what_was_written(tmp_path, capsys):
    path = tmp_path / "x.json"
    assert main(["make-instance", "one-node", "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    instance = load_instance(path)
    assert document["file"] == str(path)
    assert document["name"] == instance.name
    assert document["n_nodes"] == instance.tree.n_nodes


def test_help_lists_every_kind(specfit):
    text = specfit("make-instance", "--help").stdout
    assert all(f"\n{kind} " in text for kind in KINDS)
