"""The computing kernel: the compiled module, or its pure-Python twin.

Both have the same functions with the same signatures. The environment variable
``SPECFIT_KERNEL`` chooses: ``cython``, ``python`` or unset (the compiled one; where it was not
built, the twin, with a RuntimeWarning). :data:`NAME` tells which one is in use, and so do
``Solution.stats["kernel"]`` and ``specfit info``.
"""

from __future__ import annotations

import os
import warnings

from ..errors import SpecfitError

#: Name of the environment variable that selects the kernel.
VARIABLE = "SPECFIT_KERNEL"

_choice = os.environ.get(VARIABLE, "")
if _choice not in ("", "cython", "python"):
    raise SpecfitError(f"{VARIABLE}={_choice!r} is unknown; use 'cython', 'python' or unset it")

if _choice == "python":
    from .twin import NAME, TreeState, evaluate, pack, solve
else:
    try:
        from ._kernel import NAME, TreeState, evaluate, pack, solve
    except ImportError as error:
        if _choice == "cython":
            raise SpecfitError(
                f"{VARIABLE}=cython but the compiled kernel cannot be imported ({error}); "
                "build it with: pip install -e ."
            ) from error
        warnings.warn(
            f"the compiled kernel cannot be imported ({error}); using the pure-Python twin, which "
            f"is some hundred times slower. Set {VARIABLE}=python to silence this",
            RuntimeWarning,
            stacklevel=2,
        )
        from .twin import NAME, TreeState, evaluate, pack, solve  # type: ignore[assignment]

__all__ = ["NAME", "VARIABLE", "TreeState", "evaluate", "pack", "solve"]
