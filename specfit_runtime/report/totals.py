"""Sums over the cycles of a decode, and the rates that follow from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specfit_opt.rates import Rate, finite, plain_dict, ratio

from ..errors import InvalidInputError
from .records import CycleRecord

#: The parts that the time of a cycle is split into, in the order of a cycle.
PARTS = ("draft", "search", "transfer", "verify", "other")


@dataclass(frozen=True, kw_only=True)
class DecodeTotals:
    """Sums over cycles, and the rates that follow from them. The prefill is not in it.

    Attributes
    ----------
    passes, tokens : int
        Cycles, and tokens that they committed.
    levels, drafted, verified, accepted : int
        Sums of what :class:`specfit_runtime.CycleRecord` calls so.
    draft_seconds, search_seconds, transfer_seconds, verify_seconds, other_seconds : float
        Sums of the parts.
    lookups, hits, misses, prefetched, prefetch_hits : int
        Sums over the cycles and layers.
    bytes, prefetch_bytes, wasted_prefetch_bytes : int
        Sums in bytes.
    hidden_seconds : float
        Sum over the cycles; not a part of :attr:`seconds`.
    evictions, bypassed, scratch_rounds : int
        Sums over the cycles and layers.
    """

    passes: int
    tokens: int
    levels: int
    drafted: int
    verified: int
    accepted: int
    draft_seconds: float
    search_seconds: float
    transfer_seconds: float
    verify_seconds: float
    other_seconds: float
    lookups: int
    hits: int
    misses: int
    prefetched: int
    prefetch_hits: int
    bytes: int
    prefetch_bytes: int
    wasted_prefetch_bytes: int
    hidden_seconds: float
    evictions: int
    bypassed: int
    scratch_rounds: int

    @classmethod
    def of(cls, cycles: Iterable[CycleRecord]) -> DecodeTotals:
        """Return the totals of ``cycles``."""
        records = tuple(cycles)
        summed: dict[str, Any] = {
            f.name: (math.fsum if f.name.endswith("seconds") else sum)(
                getattr(record, f.name) for record in records
            )
            for f in dataclasses.fields(cls)
            if f.name not in ("passes", "tokens")
        }
        tokens = sum(record.committed for record in records)
        return cls(passes=len(records), tokens=tokens, **summed)

    @property
    def seconds(self) -> float:
        """Time of all cycles."""
        return math.fsum(getattr(self, f"{part}_seconds") for part in PARTS)

    tokens_per_second = Rate("tokens", "seconds", "Speed of decoding; NaN without a cycle.")
    tokens_per_pass = Rate("tokens", "passes", "Tokens committed per pass.")
    verified_per_pass = Rate("verified", "passes", "Nodes verified per pass, the root included.")
    experts_per_token = Rate(
        "lookups", "tokens", "Experts used per committed token, summed over the layers."
    )
    moved_per_token = Rate("moved", "tokens", "Experts brought in per committed token.")
    bytes_per_token = Rate("bytes", "tokens", "Bytes moved per committed token.")
    hit_rate = Rate(
        "hits", "lookups", "Share of the used experts that were in the cache or on their way."
    )

    @property
    def acceptance(self) -> float:
        """Share of the verified nodes, roots not counted, that were accepted."""
        return ratio(self.accepted, self.verified - self.passes)

    @property
    def moved(self) -> int:
        """Experts brought in: misses and prefetches."""
        return self.misses + self.prefetched

    def share(self, part: str) -> float:
        """Return the share of the time that ``part`` took, such as ``"transfer"``.

        Raises
        ------
        InvalidInputError
            If there is no such part.
        """
        if part not in PARTS:
            raise InvalidInputError(f"part {part!r} is none of {', '.join(PARTS)}")
        return ratio(getattr(self, f"{part}_seconds"), self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return sums and rates as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute and property, and ``share`` by part. A rate without a base is None.
        """
        rates = (
            "seconds",
            "tokens_per_second",
            "tokens_per_pass",
            "verified_per_pass",
            "acceptance",
            "experts_per_token",
            "moved",
            "moved_per_token",
            "bytes_per_token",
            "hit_rate",
        )
        shares = {part: finite(self.share(part)) for part in PARTS}
        return {**plain_dict(self, rates), "share": shares}
