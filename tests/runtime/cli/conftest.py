"""Runs ``specfit`` as a user does: in a process of its own, one thread."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from subprocesses import run_python

_MAIN = """
from specfit_runtime.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def specfit(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``specfit`` in an empty folder; ``hide`` names packages to act as not installed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))

    def run(*args: object, hide: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
        return run_python(_MAIN, *args, cwd=tmp_path, hide=hide)

    return run
