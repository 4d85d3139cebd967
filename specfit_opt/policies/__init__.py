"""The policies: what a cycle drafts and verifies. One file each, and an entry here.

They serve a live decode and a replay alike. One of your own is a subclass of :class:`Policy`, and
``POLICIES.register(PolicyKind(...))`` gives it a name that everything takes.
"""

from __future__ import annotations

from typing import Any

from ..checks import shown
from ..errors import InvalidInputError
from ..registry import Registry
from . import ar, chain, eagle, ecospec, evict, pool, ratio, s2moe, specfit
from .policy import Choice, Outcome, Policy, PolicyKind
from .ratio import Ratio
from .specfit import SpecFitPolicy
from .view import CycleState, DraftLevel, DraftView, LevelSource

#: Every kind of policy by its name; a word in capitals stands for what varies.
POLICIES: Registry[PolicyKind] = Registry(
    "policy",
    (
        module.KIND
        for module in (ar, chain, eagle, evict, ecospec, s2moe, pool, ratio, specfit)
    ),
    plural="policies",
)

#: The fixed policies that others are compared with.
FIXED_POLICIES = (
    "ar",
    *(f"chain-{length}" for length in range(1, 7)),
    *(f"eagle-{size}" for size in (8, 16, 32, 60)),
)

#: The published rules that look at more than the drafted tree, and the project's own.
ADAPTIVE_POLICIES = ("evict", "ecospec", "s2moe", "ratio", "specfit")


def make_policy(policy: str | Policy, **options: Any) -> Policy:
    """Return the policy of that name.

    Parameters
    ----------
    policy : str or Policy
        ``"ar"``, ``"chain-K"`` (``"chain"`` is ``"chain-4"``), ``"eagle-N"`` (``"eagle"`` is
        ``"eagle-60"``), ``"evict"``, ``"ecospec"``, ``"s2moe"``, ``"pool-"`` and a method's name,
        ``"ratio"`` (with a stop rule ``"ratio-certified"``, see ``Ratio``), ``"specfit"``, or
        what was registered. A Policy is returned as it is.
    **options
        Of the policy; see its class.

    Raises
    ------
    InvalidInputError
        If the name is unknown (the message lists the names), or the policy takes no such option.

    Examples
    --------
    >>> make_policy("chain").name, make_policy("specfit", levels=4).shape.levels
    ('chain-4', 4)
    """
    if isinstance(policy, Policy):
        if options:
            raise InvalidInputError(
                f"options ({', '.join(options)}) go with a policy's name, not with an object"
            )
        return policy
    if not isinstance(policy, str):
        raise InvalidInputError(f"a policy is a name or a Policy, got {shown(policy)}")
    for kind in POLICIES.values():
        found = kind.match(policy)
        if found is None:
            continue
        try:
            return kind.make(*found, **options)
        except TypeError as error:
            raise InvalidInputError(f"policy {shown(policy)}: {error}") from None
    raise InvalidInputError(POLICIES.unknown(policy))


__all__ = [
    "ADAPTIVE_POLICIES",
    "FIXED_POLICIES",
    "POLICIES",
    "Choice",
    "CycleState",
    "DraftLevel",
    "DraftView",
    "LevelSource",
    "Outcome",
    "Policy",
    "PolicyKind",
    "Ratio",
    "SpecFitPolicy",
    "make_policy",
]
