"""The computing kernel: the compiled module, or its pure-Python twin.

Both have the same functions with the same signatures. The environment variable
``SPECFIT_KERNEL`` chooses, when the kernel is first used: ``cython``, ``python`` or unset (the
compiled one; where it was not built, the twin, with a RuntimeWarning). :data:`NAME` tells which one
is in use, and so do ``Solution.stats["kernel"]`` and ``specfit info``.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import SpecfitError

#: Name of the environment variable that selects the kernel.
VARIABLE = "SPECFIT_KERNEL"


def _selected() -> ModuleType:
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "cython", "python"):
        raise SpecfitError(f"{VARIABLE}={choice!r} is unknown; use 'cython', 'python' or unset it")
    if choice == "python":
        return importlib.import_module(".twin", __name__)
    try:
        return importlib.import_module("._kernel", __name__)
    except ImportError as error:
        if choice == "cython":
            raise SpecfitError(
                f"{VARIABLE}=cython but the compiled kernel cannot be imported ({error}); "
                "build it with: pip install -e ."
            ) from error
        warnings.warn(
            f"the compiled kernel cannot be imported ({error}); using the pure-Python twin, which "
            f"is some hundred times slower. Set {VARIABLE}=python to silence this",
            RuntimeWarning,
            stacklevel=3,
        )
        return importlib.import_module(".twin", __name__)


if TYPE_CHECKING:
    from ._kernel import NAME, TreeState, evaluate, evict, heaviest, pack, solve, union_mask
else:

    def __getattr__(name: str) -> object:
        """Choose the kernel when it is first used, so that an error reaches who can report it."""
        if name not in _EXPORTED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _selected()
        globals().update({name: getattr(module, name) for name in _EXPORTED})
        return globals()[name]


_EXPORTED = ("NAME", "TreeState", "evaluate", "evict", "heaviest", "pack", "solve", "union_mask")

__all__ = [
    "NAME",
    "VARIABLE",
    "TreeState",
    "evaluate",
    "evict",
    "heaviest",
    "pack",
    "solve",
    "union_mask",
]
