"""What a shell can do to a command: one message and a status, no traceback, no hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from subprocesses import environment

from specfit_opt.cli.main import main

_SPECFIT = f"{sys.executable} -m specfit_opt.cli"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which SPECFIT is the command, without standard input."""
    return subprocess.run(
        ["bash", "-c", line.replace("SPECFIT", _SPECFIT)],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("SPECFIT methods >&-", 1, b"specfit: error: standard output is closed\n"),
        ("SPECFIT methods > /dev/full", 1, b"specfit: error: standard output: No space left"),
        ("SPECFIT --help > /dev/full", 1, b"specfit: error: standard output: No space left"),
        ("SPECFIT methods 2>&-", 0, b""),
        ("SPECFIT solve --json 2> /dev/full", 0, b""),
        ("SPECFIT solve none.npz 2>&-", 1, b""),
        ("SPECFIT solve $'caf\\xe9.json'", 1, rb"specfit: error: caf\udce9.json: No such file"),
    ],
)
def test_standard_files_and_names(line: str, status: int, message: bytes, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(message)
    assert b"Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_no_utf_8_is_printed(tmp_path: Path) -> None:
    name = r"$'caf\xe9.npz'"
    done = shell(
        f"SPECFIT make-instance tiny -o x.npz && cp x.npz {name} && SPECFIT solve {name}", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert rb"caf\udce9.npz: 60 nodes" in done.stdout


MAKE = ("make-instance", "tiny", "-o")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "pipe.json"], "pipe.json: is a pipe, a device or a socket"),
        (["solve", "endless.json"], "endless.json: is a pipe, a device or a socket"),
        (["replay", "endless.npz"], "endless.npz: is a pipe, a device or a socket"),
        (["replay", "--profile", "endless.json"], "endless.json: is a pipe, a device or a socket"),
        (["solve", "folder.json"], "folder.json: Is a directory"),
        (["solve", "a\0b.json"], "is no name of a file"),
        (["solve", "a" * 5000 + ".json"], "File name too long"),
        ([*MAKE, "pipe.json"], "pipe.json: cannot be written: it is a pipe"),
        ([*MAKE, "folder.json"], "folder.json: cannot be written: Is a dir"),
        ([*MAKE, "no/x.json"], "no/x.json: cannot be written: No such file"),
        ([*MAKE, "full.json"], "full.json: cannot be written: it is a pipe"),
        ([*MAKE, "x.json", "--nodes", "9" * 30], "nodes must be a whole number"),
        ([*MAKE, "x.json", "--layers", "99999"], "are too many"),
        ([*MAKE, "x.json", "--seed", "-1"], "seed must be a whole number"),
        ([*MAKE, "x.json", "--skew", "1e308"], "skew must be a finite number"),
        (["solve", "--time-limit", "nan"], "time_limit must be"),
        (["solve", "--rate", "inf"], "rate must be"),
        (["solve", "--method", "brute", "--option", f"k={'9' * 5000}"], "has no option 'k'"),
        (["solve", "--option", f"k={'[' * 100_000}"], "has no option 'k'"),
        (["replay", "--cache", "1e400GiB"], "cache size '1e400GiB' is not understood"),
        (["replay", "--layer-repeat", "9" * 30], "layer_repeat must be a whole number"),
    ],
    ids=range(21),
)
def test_bad_arguments_are_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")
    os.mkdir("folder.json")
    for name, device in (("endless.json", "zero"), ("endless.npz", "zero"), ("full.json", "full")):
        os.symlink(f"/dev/{device}", name)
    before = sorted(os.listdir(tmp_path))
    assert main(arguments) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("specfit: error: ")
    assert message in last
    assert "should not happen" not in last
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    "error", [MemoryError, RecursionError, PermissionError("x"), OSError(5, "y")]
)
def test_what_goes_wrong_inside_is_one_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specfit_opt.cli import methods

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(methods, "run", fail)
    assert main(["methods"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("specfit: error: ")
    assert message.count("\n") == 1
