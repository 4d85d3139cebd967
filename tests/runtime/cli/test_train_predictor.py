"""``specfit train-predictor``: from a recording to a decode that uses what was learned."""

from __future__ import annotations

import json

import pytest
from routed_trace import routed_trace

from specfit_opt.files import save_trace
from specfit_runtime.cli import main
from specfit_runtime.predictors.routing_network_files import load_network

SMALL = ("--embedding", "12", "--hidden", "16", "--epochs", "2")


@pytest.fixture
def traces(tmp_path):
    paths = [str(tmp_path / f"{i}.npz") for i in range(2)]
    for i, path in enumerate(paths):
        save_trace(path, routed_trace(seed=i, prompts=3, positions=20))
    return paths


def test_a_recording_becomes_a_predictor_that_decodes(tmp_path, monkeypatch, capsys):
    """As a user runs it: trace, train-predictor, generate."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        assert main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    (tmp_path / "prompts.txt").write_text("Emma could not\nEnter the King.\nThe country\n")
    pool = ("--levels", "2", "--top-k", "2", "--width", "2", "--max-new-tokens", "6")
    prompts = ("--prompt-file", "prompts.txt", "--ignore-eos", "--dtype", "float32")
    run("trace", "--states", *prompts, *pool, "-o", "t.npz")
    arguments = ("--trace", "t.npz", "-o", "network", "--drafter", "eagle3", "--json")
    figures = json.loads(run("train-predictor", *arguments, *SMALL))
    assert figures["folder"] == "network"
    assert figures["nodes"] + figures["held_out_nodes"] == 3 * 5 * (1 + 2 + 4)
    assert len(figures["recall"]) == 8
    config = json.loads((tmp_path / "network" / "config.json").read_text())
    assert (config["drafter"], config["state_size"]) == ("eagle3", 128)
    assert config["training"]["nodes"] == figures["nodes"]
    assert "eagle3 drafter's hidden state" in (tmp_path / "network" / "README.md").read_text()

    text = ("--prompt", "Emma could not", "--max-new-tokens", "12", "--dtype", "float32", "--json")
    plain = json.loads(run("generate", *text, "--policy", "ar"))
    drafted = json.loads(
        run("generate", *text, "--policy", "ecospec", "--predictor", "learned:network")
    )
    assert drafted["text"] == plain["text"]
    other = ("--drafter", "prompt-lookup", "--policy", "ecospec", "--predictor", "learned:network")
    assert main(["generate", *text, *other]) == 1
    error = capsys.readouterr().err
    assert "was trained on the states of drafter eagle3, not of prompt-lookup" in error


def test_the_text_form_says_how_good_it_is(traces, tmp_path, capsys):
    out = tmp_path / "network"
    assert main(["train-predictor", "--trace", *traces, "-o", str(out), *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out}: trained on 400 nodes in 2 epochs; on held-out texts ")
    assert "(by depth 0: " in captured.out
    network, drafter = load_network(out)
    assert drafter is None
    assert network.shape.hidden_size == 16


def test_the_seed_is_used(traces, tmp_path, capsys):
    written = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        out = tmp_path / name
        arguments = ["--trace", *traces, "-o", str(out), *SMALL, "--seed", seed, "--json"]
        assert main(["train-predictor", *arguments]) == 0
        written.append((out / "model.safetensors").read_bytes())
    assert written[0] == written[1]
    assert written[0] != written[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--held-out", "2"), "held_out must be between 0 and 1, got 2.0"),
        (("--epochs", "0"), "epochs must be at least 1"),
        (("--trace", "nowhere.npz"), "nowhere.npz"),
        (("--output", "."), "exists already; name a new folder"),
        (("--output", "a/b"), "there is no folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments, message, traces, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main(["train-predictor", "--trace", *traces, "-o", "network", *SMALL, *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("specfit: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupt_leaves_nothing(traces, tmp_path, monkeypatch, capsys):
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specfit_runtime.predictors.routing_network_files.save", interrupt)
    before = sorted(tmp_path.iterdir())
    assert main(["train-predictor", "--trace", *traces, "-o", str(tmp_path / "r"), *SMALL]) == 130
    assert sorted(tmp_path.iterdir()) == before
