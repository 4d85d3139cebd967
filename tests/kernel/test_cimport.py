"""Code outside the package can cimport the kernel's C interface, also from an editable install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SOURCE = "# cython: language_level=3\nfrom specfit_opt.kernel._kernel cimport Problem, at\n"


def test_the_interface_is_found_without_a_path_of_its_own(tmp_path):
    pytest.importorskip("Cython", reason="Cython is not in this environment")
    (tmp_path / "engine.pyx").write_text(SOURCE)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "cython", "engine.pyx"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "engine.c").exists()
