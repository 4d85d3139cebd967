"""The replay policies: one file per kind, and an entry here."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import InvalidInputError
from ...methods import METHODS
from . import ar, chain, eagle, method, specfit
from .method import MethodPolicy
from .registry import Choice, PassState, Policy, PolicyKind
from .specfit import STOP_RULES, SpecfitPolicy

#: What a policy can maximise per pass.
OBJECTIVES = ("ratio", "surplus")

# Enumeration cannot cope with pools, and the root alone after drafting it all is `ar`, only slower.
_NO_POLICY = ("brute", "root")

#: Every kind of policy by its name; those with a capital letter take a number.
POLICIES: dict[str, PolicyKind] = {
    kind.name: kind
    for kind in (
        ar.KIND,
        chain.KIND,
        eagle.KIND,
        *(method.kind_of(m) for name, m in METHODS.items() if name not in _NO_POLICY),
        *(specfit.kind_of(rule) for rule in STOP_RULES),
        specfit.DEPTH,
    )
}

#: The fixed policies that others are compared with.
FIXED_POLICIES = (
    "ar",
    "chain-1",
    "chain-2",
    "chain-4",
    "chain-6",
    "eagle-8",
    "eagle-32",
    "eagle-60",
)

# `mip` is slow and chooses what `exact` chooses, as `specfit-none` does; `eagle` is `eagle-60`. The
# last two serve comparisons of stop rules.
_NOT_BY_DEFAULT = ("mip", "specfit-none", "eagle", "specfit-gain-share", "specfit-depth-K")


def default_policies(n_levels: int, n_nodes: int) -> list[str]:
    """Return the fixed policies that pools of this depth and size can serve, and all others.

    Left out are those that repeat another: ``mip`` and ``specfit-none`` choose what ``exact`` does,
    and ``eagle`` is ``eagle-60``; and ``specfit-gain-share`` and ``specfit-depth-K``, which serve
    comparisons of stop rules.
    """
    names = []
    for name in FIXED_POLICIES:
        try:
            make_policy(name).check(n_levels, n_nodes)
        except InvalidInputError:
            continue
        names.append(name)
    names += [
        name
        for name, kind in POLICIES.items()
        if kind.takes_objective and name not in _NOT_BY_DEFAULT
    ]
    return names


def make_policy(policy: str | Policy, objective: str = "ratio") -> Policy:
    """Return the policy of that name.

    Parameters
    ----------
    policy : str or Policy
        ``ar``, ``chain-4``, ``eagle-60``, a method's name, ``specfit-`` and a stop rule, or
        ``specfit-depth-3``. The suffix ``-surplus`` maximises the surplus whatever ``objective``
        says. A Policy is returned as it is.
    objective : str
        ``"ratio"`` or ``"surplus"``; ignored by policies that maximise neither.

    Raises
    ------
    InvalidInputError
        If the name or the objective is unknown; the message lists the names.
    """
    if objective not in OBJECTIVES:
        raise InvalidInputError(
            f"objective {objective!r} is unknown; use {' or '.join(OBJECTIVES)}"
        )
    if isinstance(policy, Policy):
        return policy
    stem = policy.removesuffix("-surplus")
    for kind in POLICIES.values():
        found = kind.parse(stem)
        if found is None:
            continue
        if stem != policy and not kind.takes_objective:
            raise InvalidInputError(f"policy {stem} maximises nothing; drop the suffix -surplus")
        return kind.make(found[0], "surplus" if stem != policy else objective)
    raise InvalidInputError(f"policy {policy!r} is unknown; the policies are {', '.join(POLICIES)}")


def make_policies(policies: Iterable[str | Policy], objective: str) -> list[Policy]:
    """Return the policies of these names, each name once.

    Raises
    ------
    InvalidInputError
        As :func:`make_policy`; also if there is none.
    """
    if isinstance(policies, str):
        policies = [policies]
    found: dict[str, Policy] = {}
    for item in policies:
        policy = make_policy(item, objective)
        found.setdefault(policy.name, policy)
    if not found:
        raise InvalidInputError("no policy was given; name at least one")
    return list(found.values())


__all__ = [
    "FIXED_POLICIES",
    "OBJECTIVES",
    "POLICIES",
    "STOP_RULES",
    "Choice",
    "MethodPolicy",
    "PassState",
    "Policy",
    "PolicyKind",
    "SpecfitPolicy",
    "default_policies",
    "make_policies",
    "make_policy",
]
