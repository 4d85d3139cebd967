"""Every version of the row loops that runs on this processor gives the recorded optima."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from subprocesses import run_python

compiled = pytest.importorskip(
    "specfit_opt.kernel._kernel", reason="the compiled kernel was not built"
)

DATA = Path(__file__).resolve().parents[1] / "data"

CODE = """
import os, sys
os.environ["SPECFIT_ROWS"] = sys.argv[1]
os.environ["SPECFIT_KERNEL"] = "cython"
import json, pathlib
from specfit_opt import load_instance, solve_instance
from specfit_opt.kernel import _kernel
folder = pathlib.Path(sys.argv[2])
names = json.loads((folder / "optima.json").read_text())
found = {n: solve_instance(load_instance(folder / f"{n}.npz")).throughput for n in names}
print(json.dumps({"rows": _kernel.ROWS, "found": found}))
"""


@pytest.mark.parametrize("version", ["avx512", "avx2", "popcnt", "generic"])
def test_recorded_optima(version, tmp_path):
    if version not in compiled.row_versions():
        pytest.skip(f"the {version} version does not run on this processor")
    done = run_python(CODE, version, DATA, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["rows"] == version
    optima = json.loads((DATA / "optima.json").read_text())
    for name, throughput in answer["found"].items():
        assert throughput == pytest.approx(optima[name]["throughput"], rel=1e-9)


def test_unknown_version_is_refused(tmp_path):
    done = run_python(CODE, "mmx", DATA, cwd=tmp_path)
    assert done.returncode != 0
    assert "SPECFIT_ROWS='mmx' does not run here; use one of" in done.stderr


def test_the_best_version_comes_first():
    assert compiled.row_versions()[-1] == "generic"
