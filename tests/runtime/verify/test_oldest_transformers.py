"""The oldest supported Transformers passes the tests of what depends on its version.

It is installed into a folder of its own, which goes before the environment's packages in a process
of its own; torch is the environment's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from subprocesses import environment

REPOSITORY = Path(__file__).resolve().parents[3]
OLDEST = "5.12.0"

pytestmark = pytest.mark.slow


def test_the_project_requires_the_version_that_is_tested():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (bound,) = (
        requirement
        for requirement in project["optional-dependencies"]["runtime"]
        if re.match(r"transformers\W", requirement)
    )
    assert bound.removeprefix("transformers>=") + ".0" == OLDEST


@pytest.fixture(scope="module")
def oldest(tmp_path_factory) -> dict[str, str]:
    """Return the environment of a process that imports the oldest version."""
    folder = tmp_path_factory.mktemp("oldest")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    done = subprocess.run(
        [*pip, f"transformers=={OLDEST}"], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        pytest.skip(f"pip could not install Transformers {OLDEST}: {' '.join(reason)}")
    variables = environment()
    # What other packages warn of while they are imported is no concern of this test.
    del variables["PYTHONWARNINGS"]
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), variables["PYTHONPATH"]])
    done = run(variables, "-c", "import transformers; print(transformers.__version__)")
    assert done.stdout.split()[-1] == OLDEST
    return variables


def run(variables, *arguments) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=variables,
        timeout=1800,
    )


@pytest.mark.parametrize(
    "tests",
    [
        "tests/runtime/verify/test_session.py",
        "tests/runtime/verify/test_acceptance.py",
        "tests/runtime/verify/test_transformers_api.py",
        "tests/runtime/offload",
        "tests/runtime/decode/test_equality.py",
        "tests/runtime/decode/test_generate.py",
    ],
)
def test_the_oldest_version_passes(oldest, tests):
    done = run(oldest, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
