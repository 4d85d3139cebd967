"""The files at the root that packaging, citation and continuous integration read."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import specfit_opt

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_citation_is_that_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "message", "authors"} <= set(citation)
    assert citation["version"] == PYPROJECT["project"]["version"]
    assert citation["license"] == PYPROJECT["project"]["license"]
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        for author in reference["authors"]:
            assert set(author) in ({"name"}, {"family-names", "given-names"})


def test_citation_holds_what_the_docs_cite() -> None:
    theory = (ROOT / "docs" / "theory.rst").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.findall(r"https://arxiv\.org/abs/([\d.]+)|doi: (10\.\S+)", citation)
    assert len(cited) >= 5
    for arxiv, doi in cited:
        assert (arxiv or doi) in theory
    for url in PYPROJECT["project"]["urls"].values():
        assert url in citation


def test_changelog_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert PYPROJECT["project"]["version"] in versions


def test_workflow_runs_what_ci_runs() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    steps = yaml.safe_load(text)["jobs"]["ci"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_hooks_run_what_lint_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (repo,) = config["repos"]
    assert repo["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in repo["hooks"]:
        interpreter, flag, tool = shlex.split(hook["entry"])[:3]
        assert (interpreter, flag) == (".venv/bin/python", "-m")
        assert f"-m {tool}" in makefile


def test_wheels_are_tested_by_a_command_that_solves() -> None:
    command = PYPROJECT["tool"]["cibuildwheel"]["test-command"]
    try:
        from specfit_opt.kernel import _kernel  # noqa: F401
    except ImportError:
        pytest.skip("the kernel is not compiled")
    command = command.replace("python", shlex.quote(sys.executable), 1)
    path = str(Path(specfit_opt.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
