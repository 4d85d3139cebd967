"""Sphinx configuration: ``make docs`` builds with every warning an error."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent))

project = "specfit"
author = "the specfit authors"
copyright = "the specfit authors, Apache-2.0"
try:
    release = metadata.version("specfit")
except metadata.PackageNotFoundError:
    release = "source tree"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "measured",
    "from_package",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"
nitpicky = True
# The docs build without a network, so what lives in other projects' documentation stays unlinked.
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|networkx|nx|matplotlib|concurrent|collections|typing|pathlib)\..*"),
    ("py:.*", r"(ndarray|NDArray|ArrayLike|Axes|Executor|Mapping|Path|Any|Iterable|Iterator).*"),
]

autosummary_generate = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
# Types are in the docstrings already, with shapes and units.
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_validation_checks = {
    "all",  # less the following
    "ES01",  # an extended summary is written where there is more to say
    "EX01",  # examples are where they help
    "GL01",  # the summary starts on the line of the quotes
    "GL08",  # that there is a docstring at all is ruff's to check
    "PR01",  # what a record holds is listed under Attributes; tests/test_docs.py has the finer rule
    "PR03",  # parameters of one type may share a line, out of order
    "PR07",  # a name and a type may say it all
    "PR08",  # a description may open with a symbol
    "RT01",  # a one-line "Return the ..." needs no section; the same test has the finer rule
    "RT03",  # a type with its shape may say it all
    "SA01",  # the API page groups what belongs together
}
# Enum members, whose docstrings are comments of one line.
numpydoc_validation_exclude = {r"\.Status\.[A-Z]"}

html_theme = "furo"
html_title = "specfit"
html_static_path = ["_static"]
html_css_files = ["specfit.css"]
html_copy_source = False
