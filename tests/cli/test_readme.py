"""The README shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from specfit_opt.cli import main

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = re.findall(
    r"^```console\n\$ (.*?)\n(.*?)^```",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    flags=re.DOTALL | re.MULTILINE,
)


def test_there_is_something_to_check():
    assert SESSIONS


@pytest.mark.parametrize(("command", "expected"), SESSIONS, ids=lambda text: text.split("\n")[0])
def test_commands_print_what_the_readme_shows(command, expected, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(command)
    assert program == "specfit"
    assert main(arguments) == 0
    assert capsys.readouterr().out == expected
