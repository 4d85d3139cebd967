"""What policies take on the host beside drafting: the one place where their measured times stand.

The times are those of this package's code, by ``python -m benchmarks.policy_times``. Whoever makes
a policy faster measures again and writes the figures here; every replay charges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..checks import Real

if TYPE_CHECKING:
    from ..policies import Policy


@dataclass(frozen=True)
class PolicyTime:
    """What one policy takes on the host, drafting and predicting routing left out.

    Parameters
    ----------
    cycle : float
        Seconds of every cycle: what a policy learns and asks whatever it drafts.
    level : float
        Seconds of every drafted level: choosing, and deciding whether to draft another.

    Raises
    ------
    InvalidInputError
        If one is negative or not finite.
    """

    cycle: float
    level: float

    def __post_init__(self) -> None:
        for name in ("cycle", "level"):
            object.__setattr__(self, name, Real(unit="seconds")(getattr(self, name), name))


NO_TIME = PolicyTime(0.0, 0.0)

#: By the name of a policy, up to its first hyphen. A fixed policy has no entry and pays nothing.
POLICY_TIME: Mapping[str, PolicyTime] = MappingProxyType(
    {
        "evict": PolicyTime(cycle=7.0e-4, level=1.8e-4),
        "ecospec": PolicyTime(cycle=5.7e-4, level=4.2e-4),
        "s2moe": PolicyTime(cycle=2.1e-4, level=3.5e-4),
        "pool": PolicyTime(cycle=4.5e-4, level=1.3e-4),
        "ratio": PolicyTime(cycle=4.4e-4, level=3.5e-4),
        "specfit": PolicyTime(cycle=5.7e-4, level=5.5e-4),
    }
)

#: Seconds of predicting the routing of a level, by the predictor ``frequency``.
PREDICTION_TIME = 7.1e-5

#: Where these figures come from.
SOURCE = (
    "Measured: processor time of this package's code on one core, 48 layers of 128 experts with 8 "
    "per token, predictor frequency, rounded up (python -m benchmarks.policy_times)."
)


def time_of(policy: Policy, times: Mapping[str, PolicyTime]) -> PolicyTime:
    """Return what a policy is charged.

    Parameters
    ----------
    policy : Policy
    times : mapping of str to PolicyTime
        Empty: nothing is charged.

    Returns
    -------
    PolicyTime
        Nothing for a fixed policy, which searches and learns nothing. A policy that has no entry,
        such as one of your own, is charged the most that any entry says.
    """
    if policy.fixed or not times:
        return NO_TIME
    found = times.get(policy.name.partition("-")[0])
    if found is None:
        found = PolicyTime(
            max(time.cycle for time in times.values()), max(time.level for time in times.values())
        )
    return found
