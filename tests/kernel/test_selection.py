"""Which kernel is in use, and that it is never chosen silently."""

from __future__ import annotations

import os

from subprocesses import run_python

from specfit_opt import kernel, solve_instance
from specfit_opt.generate import generate

IN_USE = "import specfit_opt.kernel as k; print(k.NAME)"
CHOOSE = "import os, sys; os.environ['SPECFIT_KERNEL'] = sys.argv[1]; "
BROKEN = "import sys; sys.modules['specfit_opt.kernel._kernel'] = None; "


def test_the_compiled_kernel_is_in_use_unless_the_twin_was_asked_for():
    # A build that broke must fail here, not pass slowly on the twin.
    assert (os.environ.get(kernel.VARIABLE) or "cython") == kernel.NAME


def test_choice_by_environment_variable(tmp_path):
    done = run_python(CHOOSE + IN_USE, "python", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "python")


def test_unknown_choice_is_refused(tmp_path):
    done = run_python(CHOOSE + IN_USE, "fortran", cwd=tmp_path)
    assert done.returncode != 0
    assert "SPECFIT_KERNEL='fortran' is unknown; use 'cython', 'python'" in done.stderr


def test_missing_build_falls_back_with_a_warning(tmp_path):
    code = (
        "import warnings, os; os.environ.pop('SPECFIT_KERNEL', None)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import specfit_opt.kernel as k\n"
        "    name = k.NAME\n"
        "print(name, [str(w.message) for w in caught])"
    )
    done = run_python(BROKEN + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("python")
    assert "the compiled kernel cannot be imported" in done.stdout


def test_missing_build_is_an_error_where_it_was_asked_for(tmp_path):
    done = run_python(BROKEN + CHOOSE + IN_USE, "cython", cwd=tmp_path)
    assert done.returncode != 0
    assert "SPECFIT_KERNEL=cython but the compiled kernel cannot be imported" in done.stderr


def test_the_command_line_refuses_an_unknown_choice_in_one_line(tmp_path):
    code = "from specfit_opt.cli import main; sys.exit(main(['solve']))"
    done = run_python(CHOOSE + code, "fortran", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "SPECFIT_KERNEL='fortran' is unknown" in done.stderr


def test_stats_name_the_kernel():
    assert solve_instance(generate("tiny", seed=0)).stats["kernel"] == kernel.NAME
