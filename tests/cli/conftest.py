"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import specfit_opt

Run = Callable[..., "subprocess.CompletedProcess[str]"]

_HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
sys.argv[0] = "specfit"
from specfit_opt.cli import main
raise SystemExit(main())
"""


@pytest.fixture
def specfit(tmp_path: Path) -> Run:
    """Run ``specfit`` in an empty folder; ``hide`` names packages to act as not installed."""

    def run(
        *args: object, hide: Iterable[str] = (), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        start = ["-c", _HIDE.format(names=set(hide))] if hide else ["-m", "specfit_opt.cli"]
        return subprocess.run(
            [sys.executable, *start, *(str(arg) for arg in args)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(env),
            timeout=120,
        )

    return run


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which a subprocess imports the same specfit as this one."""
    source = str(Path(specfit_opt.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **(extra or {})}
