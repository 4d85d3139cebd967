"""Choose which draft subtree a mixture-of-experts model should verify.

``solve(tree, routing, cost_model)`` returns the ancestor-closed subtree with the highest predicted
throughput and its proof; :class:`TreeSearch` does so level by level while the drafter works.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from .cost import CostModel
from .errors import InvalidInputError, MissingExtraError, SpecfitError
from .files import Trace, export, load_instance, load_trace, save_instance, save_trace
from .instance import Instance
from .methods import METHODS, Method
from .routing import ExpertRouting
from .search import Advice, TreeSearch
from .solution import Solution, Status, evaluate
from .solve import solve, solve_instance
from .solve_many import solve_many
from .tree import DraftTree

try:
    __version__ = version("specfit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "METHODS",
    "Advice",
    "CostModel",
    "DraftTree",
    "ExpertRouting",
    "Instance",
    "InvalidInputError",
    "Method",
    "MissingExtraError",
    "Solution",
    "SpecfitError",
    "Status",
    "Trace",
    "TreeSearch",
    "__version__",
    "evaluate",
    "export",
    "load_instance",
    "load_trace",
    "save_instance",
    "save_trace",
    "solve",
    "solve_instance",
    "solve_many",
]
