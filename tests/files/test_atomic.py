"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from interrupts import Interrupter
from subprocesses import environment

from specfit_opt.files import atomic
from specfit_opt.files.atomic import atomic_write


def test_writes(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with atomic_write(path, "w") as handle:
        handle.write("wörter\n")
        assert not path.exists()
    assert path.read_bytes() == "wörter\n".encode()
    with atomic_write(str(path)) as handle:
        handle.write(b"\x00")
    assert path.read_bytes() == b"\x00"
    assert os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def interrupted() -> None:
        with atomic_write(path, "w") as handle:
            handle.write("half of the ne")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_follows_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link, "w") as handle:
        handle.write("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_keeps_the_usual_permissions(tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.write_text("")
    with atomic_write(ours, "w"):
        pass
    assert ours.stat().st_mode == plain.stat().st_mode


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "no" / "out.txt"):
        pass


def test_keeps_the_permissions_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    path.chmod(0o640)
    with atomic_write(path, "w") as handle:
        handle.write("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# The interrupt may come between the opening and the block that closes.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_point_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"

    def write() -> None:
        with atomic_write(path, "w") as handle:
            handle.write("new")

    interrupter = Interrupter([Path(atomic.__file__)])
    path.write_text("old")
    interrupter.run(write)
    assert path.read_text() == "new"
    points = interrupter.count
    assert points > 10
    for at in range(1, points + 1):
        path.write_text("old")
        interrupter.run(write, at)
        assert path.read_text() in ("old", "new")
        assert os.listdir(tmp_path) == ["out.txt"], at


def test_a_terminated_process_leaves_nothing(tmp_path: Path) -> None:
    code = """
import time
from specfit_opt.cli import main
from specfit_opt.cli import methods
from specfit_opt.files.atomic import atomic_write

def run(args):
    with atomic_write("out.txt", "w") as handle:
        handle.write("half")
        handle.flush()
        print("writing", flush=True)
        time.sleep(60)

methods.run = run
raise SystemExit(main(["methods"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert time.monotonic() - began < 20
    assert process.returncode == 143
    assert error == "specfit: error: terminated\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", ["write", "fsync", "replace", "open"])
def test_a_full_disk_names_the_file(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where in ("fsync", "replace"):
        monkeypatch.setattr(os, where, full)
    if where == "open":
        monkeypatch.setattr("builtins.open", full)

    def write() -> None:
        with atomic_write(path) as handle:
            if where == "write":
                os.dup2(os.open("/dev/full", os.O_WRONLY), handle.fileno())
            handle.write(b"new" * 10_000)

    with pytest.raises(OSError, match="cannot be written: No space left on device") as caught:
        write()
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (pipe, "it is a pipe, a device or a socket"),
        (Path("/dev/null"), "it is a pipe, a device or a socket"),
        (tmp_path, "Is a directory"),
        ("a\0b", "is no name of a file"),
    ):
        with pytest.raises(OSError, match=message) as caught, atomic_write(path):
            raise AssertionError("nothing should be written")
        assert caught.value.filename == str(path).replace("\0", "\\x00")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_an_error_of_what_is_written_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mine$"), atomic_write(tmp_path / "out.txt"):
        raise ValueError("mine")
    with pytest.raises(FileNotFoundError, match=r"other\.txt"), atomic_write(tmp_path / "out.txt"):
        (tmp_path / "other.txt").read_text()
    assert os.listdir(tmp_path) == []
