"""``specfit info`` and ``specfit methods`` as a user runs them."""

from __future__ import annotations

import json
import platform

import numpy as np

import specfit_opt
from specfit_opt import kernel
from specfit_opt.cli import main
from specfit_opt.methods import METHODS


def test_info_names_the_kernel_in_use_and_why(specfit, monkeypatch):
    for choice in ("python", ""):
        monkeypatch.setenv(kernel.VARIABLE, choice)
        done = specfit("info", "--json")
        if choice == "" and done.returncode != 0:
            # Without a compiled kernel the fallback warns, and the test makes warnings errors.
            assert "the compiled kernel cannot be imported" in done.stderr
            continue
        report = json.loads(done.stdout)
        assert report["specfit"]["version"] == specfit_opt.__version__
        if choice:
            assert report["specfit"]["kernel"] == choice
            assert report["specfit"]["because"] == f"{kernel.VARIABLE}={choice}"
        else:
            assert report["specfit"]["kernel"] == "cython"
            assert "is not set" in report["specfit"]["because"]
        assert report["system"]["python"].endswith(platform.python_version())
        assert report["packages"]["numpy"] == np.__version__


def test_info_is_readable_too(capsys):
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        "specfit",
        "system",
        "packages",
    ]
    assert any(line.split() == ["kernel", kernel.NAME] for line in lines)


def test_methods_lists_every_method_with_its_source_and_options(specfit, capsys):
    done = specfit("methods")
    assert done.returncode == 0, done.stderr
    for method in METHODS.values():
        assert f"{method.name} " in done.stdout
        assert method.summary in done.stdout
        assert method.source in done.stdout
    assert main(["methods", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in document] == list(METHODS)
    assert document[0]["proves"] is True
    (eagle,) = [entry for entry in document if entry["name"] == "eagle"]
    assert "budget" in eagle["options"]
