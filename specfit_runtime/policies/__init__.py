"""The decoding policies: one file per kind, and an entry here."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInputError
from . import ar, chain, eagle, ecospec, evict, specfit
from .registry import Choice, DraftView, Outcome, Policy, PolicyKind
from .specfit import OBJECTIVES, STOP_RULES, SpecFitPolicy

#: Every kind of policy by its name; those with a capital letter take a number.
POLICIES: dict[str, PolicyKind] = {
    kind.name: kind
    for kind in (
        ar.KIND,
        chain.KIND,
        eagle.KIND,
        evict.KIND,
        ecospec.KIND,
        specfit.KIND,
        *(specfit.kind_of(rule) for rule in STOP_RULES),
        specfit.DEPTH,
    )
}


def make_policy(policy: str | Policy, **options: Any) -> Policy:
    """Return the policy of that name.

    Parameters
    ----------
    policy : str or Policy
        ``"ar"``, ``"chain-K"`` (``"chain"`` is ``"chain-4"``), ``"eagle-N"`` (``"eagle"`` is
        ``"eagle-60"``), ``"evict"``, ``"ecospec"``, ``"specfit"``, ``"specfit-"`` and a stop rule,
        or ``"specfit-depth-K"``. A Policy is returned as it is.
    **options
        Of the policy; see its file under ``specfit_runtime/policies``.

    Raises
    ------
    InvalidInputError
        If the name is unknown (the message lists the names), or the policy takes no such option.

    Examples
    --------
    >>> make_policy("chain").name, make_policy("specfit", objective="ratio").objective
    ('chain-4', 'ratio')
    """
    if isinstance(policy, Policy):
        if options:
            raise InvalidInputError(
                f"options ({', '.join(options)}) go with a policy's name, not with an object"
            )
        return policy
    if not isinstance(policy, str):
        raise InvalidInputError(f"a policy is a name or a Policy, got {policy!r}")
    for kind in POLICIES.values():
        found = kind.parse(policy)
        if found is None:
            continue
        try:
            return kind.make(found[0], **options)
        except TypeError as error:
            raise InvalidInputError(f"policy {policy!r}: {error}") from None
    raise InvalidInputError(f"policy {policy!r} is unknown; the policies are {', '.join(POLICIES)}")


__all__ = [
    "OBJECTIVES",
    "POLICIES",
    "STOP_RULES",
    "Choice",
    "DraftView",
    "Outcome",
    "Policy",
    "PolicyKind",
    "SpecFitPolicy",
    "make_policy",
]
