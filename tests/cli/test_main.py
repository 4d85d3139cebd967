"""What holds for every subcommand: help, versions, errors without a traceback, broken pipes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from subprocesses import environment

import specfit_opt
from specfit_opt.cli import main

COMMANDS = ("solve", "compare", "replay", "make-instance", "export", "methods", "info")


def test_version_and_help(specfit):
    assert specfit("--version").stdout == f"specfit {specfit_opt.__version__}\n"
    text = specfit("--help").stdout
    assert all(f"\n    {command}" in text for command in COMMANDS)
    assert "exit codes" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: specfit {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("solve", "--rate", "fast"), ("make-instance", "tiny")]
)
def test_bad_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: specfit" in captured.err


#: Arguments and what the message must say; ``text.npz`` is no archive, ``tree.npz`` an instance.
ERRORS = {
    "no such file": (("solve", "absent.npz"), "absent.npz: No such file"),
    "a folder": (("solve", "folder.npz"), "folder.npz"),
    "a foreign file": (("solve", "text.npz"), "text.npz"),
    "an unknown extension": (("solve", "tree.txt"), "'.txt' is no instance format"),
    "no trace": (("replay", "tree.npz"), "tree.npz"),
    "an unknown method": (("solve", "tree.npz", "--method", "best"), "'best' is unknown"),
    "an unknown option": (
        ("solve", "tree.npz", "--option", "depth=3"),
        "'exact' has no option 'depth'",
    ),
    "an option without a value": (
        ("solve", "tree.npz", "--option", "depth"),
        "--option depth: write KEY=VALUE",
    ),
    "an option twice": (
        ("solve", "--method", "eagle", "--option", "budget=3", "--option", "budget=4"),
        "budget is given twice",
    ),
    "an option that has its own flag": (
        ("solve", "tree.npz", "--option", "rate=3"),
        "say --rate instead",
    ),
    "an option of the wrong type": (
        ("solve", "tree.npz", "--method", "eagle", "--option", "budget=many"),
        "budget",
    ),
    "a negative rate": (("solve", "tree.npz", "--rate", "-1"), "rate must be a finite"),
    "a rate that is no number": (("compare", "tree.npz", "--rate", "nan"), "rate must be a finite"),
    "no room for the root": (("compare", "tree.npz", "--max-nodes", "0"), "max_nodes"),
    "no time": (("solve", "tree.npz", "--time-limit", "0"), "time_limit"),
    "two trees for one picture": (
        ("solve", "tree.npz", "tree.npz", "--plot", "x.png"),
        "--plot draws one tree",
    ),
    "a picture of an unknown format": (
        ("solve", "tree.npz", "--plot", "x.doc"),
        "'doc' is no picture format",
    ),
    "a picture where no folder is": (("solve", "tree.npz", "--plot", "no/x.png"), "no/"),
    "an unknown policy": (("replay", "--policy", "best"), "'best' is unknown"),
    "an unknown profile": (("replay", "--profile", "abacus"), "'abacus' is unknown"),
    "a profile twice": (("replay", "--profile", "pcie4", "pcie4"), "two profiles are named"),
    "an unknown cache size": (("replay", "--cache", "much"), "'much' is not understood"),
    "a cache too large": (("replay", "--cache", "65"), "65 slots"),
    "a negative warmup": (("replay", "--warmup", "-1"), "warmup"),
    "a layer repeat of 0": (("replay", "--layer-repeat", "0"), "layer_repeat"),
    "an unknown kind": (("make-instance", "spruce", "-o", "x.npz"), "'spruce' is unknown"),
    "a kind without the option": (
        ("make-instance", "one-node", "--overlap", "0.5", "-o", "x.npz"),
        "has no option 'overlap'",
    ),
    "a share above 1": (
        ("make-instance", "tiny", "--resident", "1.5", "-o", "x.npz"),
        "resident must be a finite number of at least 0 and at most 1",
    ),
    "a negative seed": (("make-instance", "tiny", "--seed", "-1", "-o", "x.npz"), "seed must be"),
    "an instance to an unknown format": (
        ("make-instance", "tiny", "-o", "x.txt"),
        "'.txt' is no instance format",
    ),
    "a model of an unknown format": (
        ("export", "tree.npz", "-o", "x.xls"),
        "'.xls' is no model format",
    ),
    "a model where no folder is": (("export", "tree.npz", "-o", "no/x.lp"), "no/"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_without_a_traceback(case, tmp_path, monkeypatch, capsys):
    # In this process: a process for each would take most of a minute.
    arguments, message = ERRORS[case]
    monkeypatch.chdir(tmp_path)
    assert main(["make-instance", "tiny", "--nodes", "8", "-o", "tree.npz"]) == 0
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()

    assert main(arguments) == 1
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("specfit: error: ")
    assert message in last
    assert captured.out == ""
    assert sorted(tmp_path.iterdir()) == before, "an error left a file behind"


def test_an_error_in_a_process_of_its_own(specfit):
    done = specfit("solve", "absent.npz")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "specfit: error: absent.npz: No such file or directory\n"


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    command = [sys.executable, "-m", "specfit_opt.cli", "replay", "--policy", "ar"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        error = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert "Traceback" not in error
    assert "error" not in error


def test_an_interrupt_is_one_line(tmp_path):
    # A replay of everything runs for seconds; the note on standard error says that it has begun.
    process = subprocess.Popen(
        [sys.executable, "-m", "specfit_opt.cli", "replay"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
        text=True,
    )
    assert process.stderr is not None
    assert "no trace given" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert error.splitlines()[-1] == "specfit: error: interrupted"
    assert "Traceback" not in error
