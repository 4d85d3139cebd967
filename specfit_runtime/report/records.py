"""What single passes did: those of the cycles, and the prefill."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from specfit_opt.checks import Kind, Maybe, Real, Whole
from specfit_opt.rates import plain_dict
from specfit_opt.schema import check_attributes

from ..errors import InvalidInputError

#: What a time or an expectation may be, so that sums stay finite.
_FIGURE = Real(most=1e15)


@dataclass(frozen=True, kw_only=True)
class CycleRecord:
    """One cycle of decoding: draft, choose, verify, commit.

    Attributes
    ----------
    position : int
        Tokens of the output that were committed before the cycle.
    levels, drafted : int
        Levels that were drafted, and the nodes they held (the root not counted).
    verified : int
        Nodes that the pass verified, the root included.
    accepted : int
        Verified nodes, the root not counted, whose token the target confirmed.
    committed : int
        Tokens that the cycle added to the output.
    draft_seconds, search_seconds : float
        Drafting, and choosing what to verify.
    transfer_seconds : float
        Waiting for weights. What arrived while the target computed costs no time here.
    verify_seconds : float
        The target's pass, the waiting not counted.
    other_seconds : float
        The rest: acceptance, logits processors, compaction of the cache, streaming.
    predicted_seconds : float or None
        Time of the whole cycle as the cost model predicted it; None where nothing was predicted.
    expected_tokens : float or None
        Tokens that the chosen nodes promised.
    lookups, hits, misses : int
        Experts that the pass used, summed over the layers; those that were in the cache or on
        their way into it, and those that were not. ``hits + misses == lookups``.
    prefetched, prefetch_hits : int
        Experts fetched early, before their layer asked for them, and how many of the hits were
        such.
    bytes : int
        Bytes moved over the store's link, prefetches included.
    prefetch_bytes : int
        The part of ``bytes`` that was prefetched.
    wasted_prefetch_bytes : int
        The part of ``prefetch_bytes`` that the pass did not use.
    hidden_seconds : float
        Waiting that prefetches spared, estimated: of each hit by prefetch the mean time of a
        transfer, less the time that it was waited for. Not a part of the cycle's time.
    evictions, bypassed, scratch_rounds : int
        Experts that lost their slot; experts used without getting one; and the rounds through the
        scratch slots that those took.

    Raises
    ------
    InvalidInputError
        If a figure is negative or NaN, or the counters contradict each other.
    """

    position: int
    levels: int
    drafted: int
    verified: int
    accepted: int
    committed: int
    draft_seconds: float
    search_seconds: float
    transfer_seconds: float
    verify_seconds: float
    other_seconds: float
    predicted_seconds: float | None = None
    expected_tokens: float | None = None
    lookups: int
    hits: int
    misses: int
    bytes: int
    prefetch_bytes: int = 0
    prefetch_hits: int = 0
    wasted_prefetch_bytes: int = 0
    prefetched: int = 0
    hidden_seconds: float = 0.0
    evictions: int = 0
    bypassed: int = 0
    scratch_rounds: int = 0

    def __post_init__(self) -> None:
        _make_plain(self)
        _check_lookups(self, f"the cycle at position {self.position}")
        where = f"the cycle at position {self.position}"
        if not 0 <= self.accepted < self.verified:
            raise InvalidInputError(
                f"{where} accepted {self.accepted} of {self.verified} verified nodes; the root is "
                "verified but not accepted"
            )
        if not 1 <= self.committed <= self.accepted + 1:
            raise InvalidInputError(
                f"{where} committed {self.committed} tokens after accepting {self.accepted}; a "
                "cycle commits at least one and at most one more than it accepts"
            )
        if self.prefetch_hits > self.hits:
            raise InvalidInputError(
                f"{where} has {self.prefetch_hits} hits by prefetch among {self.hits} hits"
            )
        if self.prefetch_bytes > self.bytes:
            raise InvalidInputError(
                f"{where} prefetched {self.prefetch_bytes} of {self.bytes} bytes moved"
            )
        if self.prefetch_bytes and not self.prefetched:
            raise InvalidInputError(
                f"{where} prefetched {self.prefetch_bytes} bytes but no expert; give prefetched"
            )

    @property
    def seconds(self) -> float:
        """Time of the whole cycle: the sum of its parts."""
        return (
            self.draft_seconds
            + self.search_seconds
            + self.transfer_seconds
            + self.verify_seconds
            + self.other_seconds
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute, and ``seconds``.
        """
        return plain_dict(self, ("seconds",))


@dataclass(frozen=True, kw_only=True)
class PrefillRecord:
    """The passes over the prompt, which every policy pays alike.

    Attributes
    ----------
    tokens : int
        Prompt tokens that were processed.
    committed : int
        Tokens that it added to the output: the first one.
    seconds : float
        Time to the first token.
    transfer_seconds : float
        The part spent waiting for weights.
    lookups, hits, misses, bytes : int
        As in :class:`specfit_runtime.CycleRecord`, of the prefill alone.

    Raises
    ------
    InvalidInputError
        If a figure is negative or NaN, or the counters contradict each other.
    """

    tokens: int
    committed: int = 1
    seconds: float
    transfer_seconds: float
    lookups: int
    hits: int
    misses: int
    bytes: int

    def __post_init__(self) -> None:
        _make_plain(self)
        _check_lookups(self, "the prefill")

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain Python values, ready for JSON.

        Returns
        -------
        dict
            Every attribute.
        """
        return plain_dict(self)


def _make_plain(record: CycleRecord | PrefillRecord) -> None:
    """Make every figure a plain int or float, and check that it is one that can be."""
    kinds: dict[str, Kind] = {}
    for f in dataclasses.fields(record):
        kinds[f.name] = _FIGURE if "float" in str(f.type) else Whole()
        if "None" in str(f.type):
            kinds[f.name] = Maybe(_FIGURE)
            value = getattr(record, f.name)
            if isinstance(value, (float, np.floating)) and not math.isfinite(value):
                object.__setattr__(record, f.name, None)  # nothing that could be predicted
    check_attributes(record, kinds)


def _check_lookups(record: CycleRecord | PrefillRecord, where: str) -> None:
    if record.hits + record.misses != record.lookups:
        raise InvalidInputError(
            f"{where} has {record.hits} hits and {record.misses} misses but {record.lookups} "
            "lookups; the two must add up"
        )
