"""What holds without running a model: help, usage, what is imported, and what is missing."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, entry_points, version

import pytest
from subprocesses import run_python

import specfit_opt
from specfit_opt.cli.main import COMMANDS as SELECTION_COMMANDS
from specfit_runtime import _extras
from specfit_runtime.cli import main
from specfit_runtime.cli.main import build_parser
from specfit_runtime.cli.options import DTYPES, STORES

RUNTIME_COMMANDS = (
    "demo",
    "generate",
    "calibrate",
    "trace",
    "replay",
    "train-predictor",
    "evaluate-predictor",
)
HEAVY = {"torch", "transformers", "safetensors", "tokenizers", "accelerate"}


def _commands() -> list[str]:
    actions = build_parser()._actions
    return list(next(a.choices for a in actions if a.nargs == "A..."))


def test_the_installed_command_is_this_main():
    try:
        version("specfit")
    except PackageNotFoundError:
        pytest.skip("specfit runs from a source tree that is not installed")
    (entry,) = entry_points(group="console_scripts", name="specfit")
    assert entry.load() is main


def test_both_packages_commands_are_there_once():
    commands = _commands()
    assert len(commands) == len(set(commands))
    names = {module.__name__.rpartition(".")[2] for module in SELECTION_COMMANDS}
    names = {name.replace("_", "-") for name in names}
    assert set(commands) == names | set(RUNTIME_COMMANDS)


@pytest.mark.parametrize("command", RUNTIME_COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: specfit {command}" in capsys.readouterr().out


def test_version():
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert specfit_opt.__version__


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["solve"],
        ["make-instance", "tiny", "-o", "x.npz"],
    ],
    ids=" ".join,
)
def test_what_runs_no_model_imports_no_torch(arguments, tmp_path):
    code = f"""
import sys
from specfit_runtime import _extras
from specfit_runtime.cli import main
try:
    code = main({arguments!r})
except SystemExit as stop:
    code = stop.code
assert not code, code
print("imported:", sorted({HEAVY!r} & sys.modules.keys()))
"""
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (("generate", "--prompt", "x"), "torch"),
        (("demo",), "transformers"),
        (("trace", "--prompt", "x", "-o", "x.npz"), "safetensors"),
        (("calibrate", "-o", "x.json"), "tokenizers"),
        (("train-predictor", "--trace", "x.npz", "-o", "new"), "safetensors"),
        (("evaluate-predictor", "x.npz"), "torch"),
    ],
)
def test_a_missing_package_is_one_line(arguments, package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    find = _extras.find_spec
    monkeypatch.setattr(_extras, "find_spec", lambda name: None if name == package else find(name))
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"specfit: error: {package} is not installed; it comes with an extra: "
        "pip install 'specfit[runtime]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_other_commands_work(specfit):
    done = specfit("generate", "--prompt", "x", hide=HEAVY)
    assert done.returncode == 1
    assert done.stderr.startswith("specfit: error: torch is not installed")
    assert specfit("methods", hide=HEAVY).returncode == 0


# ---- bad usage and bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate",), "one of the arguments --prompt --prompt-file is required"),
        (("generate", "--temperature", "1"), "one of the arguments --prompt --prompt-file is"),
        (("generate", "--prompt", "y", "Once upon"), "unrecognized arguments: Once upon"),
        (("make-instance", "tiny"), "-o/--output"),
        (("generate", "--prompt", "x", "--prompt-file", "y"), "not allowed with"),
        (("generate", "--prompt", "x", "--top-p", "0.9"), "give --temperature as well"),
        (("generate", "--prompt", "x", "--top-k", "3", "--temperature", "0"), "give --temperature"),
        (("generate", "--prompt", "x", "--store", "tape"), "invalid choice: 'tape'"),
        (("trace", "--prompt", "x"), "-o/--output"),
        (("calibrate",), "-o/--output"),
    ],
)
def test_bad_usage_exits_with_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: specfit" in captured.err
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


#: Arguments and what the message must say; none of these comes to importing torch.
ERRORS = {
    "an empty prompt": (("generate", "--prompt", ""), "the prompt is empty"),
    "an empty file": (("generate", "--prompt-file", "empty.txt"), "empty.txt: the prompt is empty"),
    "no such file": (("generate", "--prompt-file", "absent.txt"), "absent.txt: No such file"),
    "a file of bytes": (("generate", "--prompt-file", "bytes.txt"), "bytes.txt: not UTF-8"),
    "no token": (("generate", "--prompt", "x", "--max-new-tokens", "0"), "whole number from 1"),
    "a negative temperature": (
        ("generate", "--prompt", "x", "--temperature", "-1"),
        "--temperature -1.0: must be finite",
    ),
    "a report where no folder is": (
        ("generate", "--prompt", "x", "--report", "no/x.jsonl"),
        "--report no/x.jsonl: there is no folder no",
    ),
    "a report over a folder": (("generate", "--prompt", "x", "--report", "folder"), "is a folder"),
    "a trace of another format": (("trace", "--prompt", "x", "-o", "x.json"), "must end in .npz"),
    "a trace where no folder is": (("trace", "--prompt", "x", "-o", "no/x.npz"), "no folder no"),
    "no prompt to trace": (("trace", "-o", "x.npz"), "no prompt: give --prompt TEXT"),
    "only empty lines": (("trace", "--prompt-file", "lines.txt", "-o", "x.npz"), "no prompt"),
    "an empty prompt to trace": (("trace", "--prompt", "", "-o", "x.npz"), "prompt 0 is empty"),
    "a broken line": (
        ("trace", "--prompt-file", "broken.jsonl", "-o", "x.npz"),
        "broken.jsonl, line 2: no JSON, or cut short",
    ),
    "a line without a prompt": (
        ("trace", "--prompt-file", "other.jsonl", "-o", "x.npz"),
        "other.jsonl, line 1: it lacks 'prompt'; the keys are prompt",
    ),
    "a demo of one token": (("demo", "--max-new-tokens", "1"), "must be at least 2"),
    "a link that runs backwards": (("demo", "--emulate-link", "-2"), "--emulate-link -2: give"),
    "a profile of another format": (("calibrate", "-o", "x.npz"), "must end in .json"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_and_leave_nothing_behind(case, tmp_path, monkeypatch, capsys):
    arguments, message = ERRORS[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "lines.txt").write_text("\n  \n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "x"}\n{"prompt"\n')
    (tmp_path / "other.jsonl").write_text('{"text": "x"}\n')
    before = sorted(tmp_path.iterdir())
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("specfit: error: ")
    assert message in last
    assert sorted(tmp_path.iterdir()) == before


# ---- names that torch-free code repeats


def test_the_stores_of_the_options_are_those_of_the_registry():
    from specfit_runtime.stores import STORES as REGISTRY

    assert tuple(REGISTRY) == STORES


def test_the_dtypes_of_the_options_exist():
    import torch

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)


@pytest.mark.parametrize(
    "where", ["specfit_runtime.drafters:DRAFTERS", "specfit_opt.policies:POLICIES"]
)
def test_the_help_text_names_every_entry_of_a_registry(where, capsys):
    from importlib import import_module

    module, _, name = where.partition(":")
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for entry in getattr(import_module(module), name):
        assert entry in text
