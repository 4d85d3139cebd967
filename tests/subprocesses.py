"""Python in a process of its own, importing the same specfit as this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import specfit_opt

_HIDE = """\
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def environment() -> dict[str, str]:
    """Return the environment; a warning is an error there too."""
    source = str(Path(specfit_opt.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}


def run_python(
    code: str,
    *args: object,
    cwd: Path,
    hide: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``code``; the packages in ``hide`` act as not installed, ``env`` is set as well."""
    return subprocess.run(
        [sys.executable, "-c", _HIDE.format(names=set(hide)) + code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment() | dict(env or {}),
        timeout=600,
    )
