"""The selection methods: one file and one entry here each."""

from __future__ import annotations

from ..errors import InvalidInputError
from . import brute, chain, eagle, ecospec, evict, exact, greedy, mip, root
from .registry import Method

#: Every method by name. The test matrix and the command line read this.
METHODS: dict[str, Method] = {
    module.METHOD.name: module.METHOD
    for module in (exact, mip, brute, greedy, eagle, evict, ecospec, chain, root)
}


def get_method(name: str) -> Method:
    """Return the method registered as ``name``.

    Raises
    ------
    InvalidInputError
        If there is none; the message lists the names.
    """
    try:
        return METHODS[name]
    except (KeyError, TypeError):  # the second: what cannot even be looked up
        raise InvalidInputError(
            f"method {name!r} is unknown; the methods are {', '.join(METHODS)}"
        ) from None


__all__ = ["METHODS", "Method", "get_method"]
