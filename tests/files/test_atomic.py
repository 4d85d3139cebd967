"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
