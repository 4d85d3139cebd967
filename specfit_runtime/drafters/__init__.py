"""The drafters: one file per kind, and an entry here."""

from __future__ import annotations

from specfit_opt.policies import DraftLevel
from specfit_opt.registry import Registry

from ..part_kind import PartKind, make_part
from . import causal_lm, eagle3, prompt_lookup
from .causal_lm import CausalLmDrafter
from .drafter import Candidates, Drafter
from .eagle3 import Eagle3Drafter
from .prompt_lookup import PromptLookup

#: Every kind of drafter by its name. The test matrix and the command line read this.
DRAFTERS: Registry[PartKind[Drafter]] = Registry(
    "drafter", (eagle3.KIND, causal_lm.KIND, prompt_lookup.KIND)
)


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
    return make_part(DRAFTERS, Drafter, drafter, {})


__all__ = [
    "DRAFTERS",
    "Candidates",
    "CausalLmDrafter",
    "DraftLevel",
    "Drafter",
    "Eagle3Drafter",
    "PromptLookup",
    "make_drafter",
]
