"""The package needs numpy alone, and says which extra brings what else it may need."""

from __future__ import annotations

import pytest
from subprocesses import run_python

OPTIONAL = (
    "dask",
    "distributed",
    "matplotlib",
    "networkx",
    "ortools",
    "pandas",
    "safetensors",
    "scipy",
    "specfit_runtime",  # it imports specfit_opt, never the reverse
    "torch",
    "tqdm",
    "transformers",
)

_IMPORT_ALL = """
import pkgutil, specfit_opt
for module in pkgutil.walk_packages(specfit_opt.__path__, "specfit_opt."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
"""


def test_importing_everything_imports_no_optional_package(tmp_path):
    code = f"{_IMPORT_ALL}\nprint(sorted({OPTIONAL!r} & sys.modules.keys()))"
    code = code.replace(repr(OPTIONAL), repr(set(OPTIONAL)))
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_everything_imports_where_no_optional_package_is_installed(tmp_path):
    done = run_python(_IMPORT_ALL, cwd=tmp_path, hide=OPTIONAL)
    assert done.returncode == 0, done.stderr


_PROBLEM = """
from specfit_opt import CostModel, DraftTree, ExpertRouting, MissingExtraError, solve
from specfit_opt.plot import plot_tree
tree = DraftTree([-1, 0, 0], [1.0, 0.8, 0.1])
routing = ExpertRouting([[[0, 1]], [[0, 2]], [[3, 4]]], n_experts=5)
cost = CostModel(fixed_time=1.0, node_time=0.01, expert_time=0.2)
solution = solve(tree, routing, cost)
try:
    {use}
except MissingExtraError as error:
    print(error.package, error.extra)
    print(error)
"""


@pytest.mark.parametrize(
    ("use", "package", "extra"),
    [
        ("solve(tree, routing, cost, method='mip')", "ortools", "mip"),
        ("tree.to_networkx()", "networkx", "graph"),
        ("DraftTree.from_networkx(None)", "networkx", "graph"),
        ("plot_tree(tree, solution)", "matplotlib", "plot"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(use, package, extra, tmp_path):
    done = run_python(_PROBLEM.format(use=use), cwd=tmp_path, hide=[package])
    assert done.returncode == 0, done.stderr
    names, message = done.stdout.splitlines()
    assert names == f"{package} {extra}"
    assert f"pip install 'specfit[{extra}]'" in message
