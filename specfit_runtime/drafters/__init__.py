"""The drafters: one file per kind, and an entry here."""

from __future__ import annotations

from specfit_opt.policies import DraftLevel
from specfit_opt.registry import Registry

from ..errors import InvalidInputError
from . import causal_lm, eagle3, prompt_lookup
from .causal_lm import CausalLmDrafter
from .drafter import Candidates, Drafter
from .drafter_kind import DrafterKind
from .eagle3 import Eagle3Drafter
from .prompt_lookup import PromptLookup

#: Every kind of drafter by its name. The test matrix and the command line read this.
DRAFTERS = Registry("drafter", (eagle3.KIND, causal_lm.KIND, prompt_lookup.KIND))


def make_drafter(drafter: str | Drafter) -> Drafter:
    """Return the drafter that ``drafter`` names.

    Parameters
    ----------
    drafter : str or Drafter
        ``eagle3:DIR``, ``lm:DIR`` or ``prompt-lookup``. A Drafter is returned as it is.

    Raises
    ------
    InvalidInputError
        If the kind is unknown or its folder is missing; the message lists the kinds.

    Examples
    --------
    >>> from specfit_runtime.drafters import make_drafter
    >>> make_drafter("prompt-lookup").name
    'prompt-lookup'
    """
    if isinstance(drafter, Drafter):
        return drafter
    kinds = ", ".join(kind.usage for kind in DRAFTERS.values())
    if not isinstance(drafter, str):
        raise InvalidInputError(f"a drafter is a name or a Drafter, got {drafter!r}; use {kinds}")
    name, colon, argument = drafter.partition(":")
    kind = DRAFTERS.find(name)
    if kind.needs and not argument:
        raise InvalidInputError(f"drafter {name!r} needs a {kind.needs}: use {kind.usage}")
    if colon and not kind.needs:
        raise InvalidInputError(f"drafter {name!r} takes nothing after a colon, got {argument!r}")
    return kind.make(argument)


__all__ = [
    "DRAFTERS",
    "Candidates",
    "CausalLmDrafter",
    "DraftLevel",
    "Drafter",
    "DrafterKind",
    "Eagle3Drafter",
    "PromptLookup",
    "make_drafter",
]
