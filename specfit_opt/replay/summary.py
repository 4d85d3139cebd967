"""Tables and summaries of replay results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidInputError
from ..policies import FIXED_POLICIES
from ..rates import ratio
from ..text import format_table
from .result import ReplayResult


@dataclass(frozen=True)
class PolicySummary:
    """One policy over several cells (traces, machines, cache sizes).

    Attributes
    ----------
    policy : str
    cells : int
    tokens_per_second : float
        Geometric mean over the cells.
    speedup : float
        Geometric mean of the speed relative to the baseline's in the same cell.
    against_best_fixed : float
        Geometric mean of the speed relative to the best fixed policy's of the same cell, which is
        known in hindsight only.
    worst_against_best_fixed : float
        The smallest of those ratios.
    """

    policy: str
    cells: int
    tokens_per_second: float
    speedup: float
    against_best_fixed: float
    worst_against_best_fixed: float


def summarise(
    results: Iterable[ReplayResult],
    *,
    baseline: str = "ar",
    fixed: Sequence[str] = FIXED_POLICIES,
) -> list[PolicySummary]:
    """Return one summary per policy, in the order of first appearance.

    Parameters
    ----------
    results : iterable of ReplayResult
        Every cell must hold ``baseline`` and at least one of ``fixed``. Results without a counted
        pass are left out.
    baseline : str
        What speedups refer to.
    fixed : sequence of str
        The policies whose best, per cell, the others are held against.

    Raises
    ------
    InvalidInputError
        If a cell lacks the baseline or all fixed policies.
    """
    cells: dict[tuple[str, str, str, int, int], dict[str, float]] = {}
    order: dict[str, None] = {}
    for r in results:
        if r.passes:
            key = (r.trace, r.profile, r.cache_policy, r.slots, r.layer_repeat)
            cells.setdefault(key, {})[r.policy] = r.tokens_per_second
            order.setdefault(r.policy)
    for key, speeds in cells.items():
        if baseline not in speeds or not any(name in speeds for name in fixed):
            raise InvalidInputError(
                f"the cell {key[0]}, {key[1]}, {key[3]} slots lacks {baseline!r} or every fixed "
                f"policy ({', '.join(fixed)}); replay them too"
            )
    summaries = []
    for policy in order:
        own = [speeds for speeds in cells.values() if policy in speeds]
        best = [max(speeds[f] for f in fixed if f in speeds) for speeds in own]
        ratios = [speeds[policy] / b for speeds, b in zip(own, best, strict=True)]
        summaries.append(
            PolicySummary(
                policy=policy,
                cells=len(own),
                tokens_per_second=_geometric_mean([speeds[policy] for speeds in own]),
                speedup=_geometric_mean([speeds[policy] / speeds[baseline] for speeds in own]),
                against_best_fixed=_geometric_mean(ratios),
                worst_against_best_fixed=min(ratios),
            )
        )
    return summaries


def replay_table(results: Sequence[ReplayResult]) -> str:
    """Return the results as a plain text table, a block per trace, machine and cache size.

    ``overhead`` is the share of the time that the policy takes on the host; p50 and p95 are of the
    time per token. With overlap two columns more: seconds of transfer that hid behind compute, and
    the share of the bytes that were fetched in vain.
    """
    groups: dict[str, list[ReplayResult]] = {}
    for r in results:
        groups.setdefault(_title(r), []).append(r)
    overlap = any(r.hidden_seconds for r in results)
    head = (*_HEAD, *_OVERLAP_HEAD) if overlap else _HEAD
    tables = {
        title: format_table(head, [_cells(r, overlap) for r in group])
        for title, group in groups.items()
    }
    return "\n\n".join(f"{title}\n{table}" for title, table in tables.items())


_HEAD = (
    "policy",
    "tokens/s",
    "passes",
    "tokens/pass",
    "predicted",
    "nodes",
    "levels",
    "hits",
    "MB/token",
    "overhead",
    "p50 ms",
    "p95 ms",
    "seconds",
)
_OVERLAP_HEAD = ("hidden", "in vain")


def _cells(r: ReplayResult, overlap: bool) -> tuple[str, ...]:
    early = f"{r.hidden_seconds:.3f}", f"{100.0 * ratio(r.wasted_prefetch_bytes, r.bytes):.0f}%"
    return (
        r.policy,
        f"{r.tokens_per_second:.2f}",
        f"{r.passes}",
        f"{r.tokens_per_pass:.2f}",
        f"{r.predicted_tokens_per_pass:.2f}",
        f"{r.nodes_per_pass:.1f}",
        f"{r.levels_per_pass:.1f}",
        f"{100.0 * r.hit_rate:.0f}%",
        f"{r.bytes_per_token / 1e6:.1f}",
        f"{100.0 * r.overhead:.1f}%",
        f"{1e3 * r.p50_seconds:.1f}",
        f"{1e3 * r.p95_seconds:.1f}",
        f"{r.seconds:.3f}",
        *(early if overlap else ()),
    )


def _title(r: ReplayResult) -> str:
    if r.cache_policy == "resident":
        cache = f"all {r.n_experts} experts per layer resident"
    else:
        cache = f"{r.cache_policy} cache of {r.slots} of {r.n_experts} experts per layer"
    repeat = f", each recorded layer standing for {r.layer_repeat}" if r.layer_repeat > 1 else ""
    return f"{r.trace or 'trace'}, {r.profile}, {cache}{repeat}"


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
